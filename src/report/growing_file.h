// A file that grows by whole pieces while a run lasts, and may fail to without ending the run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/file.h"

namespace jackscrew {

class GrowingFile {
 public:
  // Opens the file, which is made where it is missing, to write at its end. Throws Error(generic)
  // where that is refused.
  explicit GrowingFile(const fs::path& path);
  // Tries for the last time to write what waits.
  ~GrowingFile();
  GrowingFile(const GrowingFile&) = delete;
  GrowingFile& operator=(const GrowingFile&) = delete;

  // Appends a piece and hands it to the system. Where that is refused, by a full disk mostly, warns
  // once; the piece waits for the next call, whole, and later ones behind it. Of pieces that wait
  // the newest beyond 16 MiB are lost.
  void append(std::string_view piece);

  // As it was opened.
  bool began_empty() const { return began_empty_; }

 private:
  bool write_waiting();

  fs::path path_;
  int descriptor_ = -1;
  bool began_empty_ = true;
  bool warned_ = false;
  std::string waiting_;
};

}  // namespace jackscrew
