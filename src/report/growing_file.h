// A file that grows by whole pieces during a run, and whose write errors do not end the run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace jackscrew {

// Important pieces are few, and are kept when others no longer are.
enum class PieceKind { ordinary, important };

class GrowingFile {
 public:
  // Opens the file for appending, and creates it if it is missing. Throws Error(generic) where that
  // fails.
  explicit GrowingFile(const fs::path& path);
  // Tries once more to write the waiting pieces, and warns where they are lost.
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  // Appends a piece and passes it to the system. If that fails, mostly on a full disk, warns once;
  // the piece waits, whole and in order, for later calls. Once 16 MiB are waiting, new pieces are
  // lost, of which it warns once; important ones have as much room of their own.
  void append(std::string_view piece, PieceKind kind = PieceKind::ordinary);

  // Writes what waits. Throws FullDisk where the disk has no room for it, Error(generic) where it
  // cannot be written for another reason; it then still waits.
  void flush();

  // Writes the file anew in `directory` if it was removed or renamed meanwhile, with all that it
  // had, and goes on there. If another file has its name, appends to that what it lacks, goes on
  // there, and warns once. If the file cannot be created or opened, a later call may.
  void put_back(const fs::path& directory);

  const fs::path& path() const { return path_; }
  // Whether the file was empty when it was opened.
  bool began_empty() const { return began_empty_; }

 private:
  bool write_waiting();

  fs::path path_;
  int descriptor_ = -1;
  bool began_empty_ = true;
  bool warned_ = false;
  bool warned_of_loss_ = false;
  bool warned_of_other_ = false;
  std::string waiting_;
};

}  // namespace jackscrew
