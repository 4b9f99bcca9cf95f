// Files: read-only memory maps, whole-file reads, and writes that are either complete or absent.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/checked.h"

namespace jackscrew {

namespace fs = std::filesystem;

// A file mapped read-only. Movable; the map lives as long as the object.
class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error(model) with the system's reason when the file cannot be opened or mapped; an
  // Unreadable where it is there.
  explicit MappedFile(const fs::path& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const fs::path& path() const { return path_; }

  // Tells the kernel that pages [offset, offset + size) are not needed any more.
  void release(size_t offset, size_t size) const;

 private:
  friend class FileWriter;
  // Of an open file, which `path` names in messages.
  MappedFile(int descriptor, const fs::path& path);

  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  fs::path path_;
};

// nameless: a new file beside `path` that loses its name as soon as it is open, so that nothing is
// left of it however the process ends.
enum class WriteMode { replace, append, nameless };

// A file being written. Every failure, a full disk included, throws Error(generic) naming the path.
class FileWriter {
 public:
  explicit FileWriter(const fs::path& path, WriteMode mode = WriteMode::replace);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(const void* data, size_t size);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void flush();
  // Flushes, syncs to disk and closes. A writer destroyed without close() leaves a partial file.
  void close();
  // Flushes and closes a nameless file, whose bytes stay as long as their map.
  MappedFile close_mapped();

 private:
  std::FILE* file_ = nullptr;
  fs::path path_;
};

// The same place by a path that ends in a name of its own, to which a suffix makes a neighbour's:
// "m" for "m/" and "m/.", the directory's own name for ".".
fs::path named_path(fs::path path);

// Whether both are there and one file or directory, whatever their names.
bool is_same_file(const fs::path& a, const fs::path& b);

// For a hint about a path where nothing is: "; a path counts from the current directory, ...";
// empty for an absolute one.
std::string from_where(const fs::path& path);

// The whole file as text. Throws Error(model) when it cannot be read or is larger than `max_bytes`.
std::string read_text(const fs::path& path, int64_t max_bytes = int64_t{1} << 30);

// The first `bytes` of a file, or all where it has fewer. Throws as MappedFile does.
std::string read_beginning(const fs::path& path, size_t bytes);

// What files take that are to be written.
struct FileSizes {
  void add(int64_t file) { add({file, file}); }
  void add(const FileSizes& files) {
    all = checked_add(all, files.all);
    largest = std::max(largest, files.largest);
  }

  int64_t all = 0;
  int64_t largest = 0;  // of one of them
};

// The most bytes that a file may have that this process writes (ulimit -f); nullopt: no limit.
std::optional<int64_t> file_size_limit();

// Gives a file the name `to`, replacing a file there. Throws Error(generic).
void rename_file(const fs::path& from, const fs::path& to);
// The same for two names in an open directory, wherever it is now; `shown` is its path for
// messages.
void rename_file_in(int directory, const std::string& from, const std::string& to,
                    const fs::path& shown);

// Writes beside and renames: after a crash the file holds either the old text or the new. Throws
// Error(generic) where the disk refuses or another process writes it.
void write_text_atomic(const fs::path& path, std::string_view text);

// Makes a directory, and those above it, where there is none. Throws Error(generic).
void make_directories(const fs::path& path);
// The same where only the last is missing: one that was moved away is not made again.
void make_directory(const fs::path& path);

// Syncs a directory so that renames inside it survive a power cut. Throws Error(generic).
void sync_directory(const fs::path& path);

// Syncs the directory in which `written` was given its final name, so that this survives a power
// cut. Where the disk refuses, that is a warning: all of it is there.
void sync_renamed(const fs::path& directory, const fs::path& written);

// Holds a directory for this process until destruction, by an advisory lock that ends with the
// process however that ends.
class DirectoryLock {
 public:
  DirectoryLock() = default;
  // Throws Error(generic) when another process holds it. On file systems without locks nothing is
  // locked.
  explicit DirectoryLock(const fs::path& directory);
  ~DirectoryLock();
  DirectoryLock(DirectoryLock&& other) noexcept;
  DirectoryLock& operator=(DirectoryLock&& other) noexcept;
  DirectoryLock(const DirectoryLock&) = delete;
  DirectoryLock& operator=(const DirectoryLock&) = delete;

  // Whether the directory that is held is at `path`: what is there otherwise is another's.
  bool is_at(const fs::path& path) const;

 private:
  int descriptor_ = -1;
};

// Ends the names of what is being written. Nobody else would choose it, so what a killed process
// left under such a name may be replaced.
inline constexpr const char* kTemporarySuffix = ".jackscrew-part";

// Follows the name of what is being written while what it replaces lies there, on a file system
// that cannot exchange two names.
inline constexpr const char* kReplacedSuffix = ".old";

// Throws Error(generic) where another process holds what is to get this name, a file or a directory
// under its temporary name. A lock for that is given back at once.
void require_no_claim(const fs::path& final_path);

// A file or directory under a temporary name, held by this process as DirectoryLock holds one.
class TemporaryClaim {
 public:
  enum class Kind { file, directory };
  // Makes an empty one at `temporary`, replacing what a killed process left. Throws Error(generic)
  // where another process holds it, naming `final_path`, or where the system refuses.
  TemporaryClaim(fs::path temporary, const fs::path& final_path, Kind kind);
  // Removes what was made, unless it was released, or somebody has moved it away.
  ~TemporaryClaim();
  TemporaryClaim(const TemporaryClaim&) = delete;
  TemporaryClaim& operator=(const TemporaryClaim&) = delete;

  const fs::path& path() const { return path_; }
  // Throws Error(generic) where it is not at path() any more: somebody has moved or removed it, or
  // a directory above it, and what is there now is another's.
  void require_in_place() const;
  // What was made has its final name: nothing is left to be removed, and another may replace it.
  void release();

 private:
  fs::path path_;
  int descriptor_;
  bool released_ = false;
};

// A file written beside its final place and renamed into it by commit(). Without commit() the
// partial file is removed.
class AtomicFile {
 public:
  explicit AtomicFile(const fs::path& final_path);

  const fs::path& path() const { return temporary_.path(); }
  // Throws as commit(), for whoever reads at path() what was written.
  void require_in_place() const { temporary_.require_in_place(); }
  // Replaces a file at the final path. Throws Error(generic) where the file is not at path() any
  // more: what is there now is another's.
  void commit();

 private:
  fs::path final_;
  TemporaryClaim temporary_;
};

// A directory written beside its final place and renamed into it by commit(). Without commit() the
// partial directory is removed.
class AtomicDirectory {
 public:
  // `suffix` makes the temporary name; in a directory that belongs to a run any will do.
  explicit AtomicDirectory(const fs::path& final_path, const char* suffix = kTemporarySuffix);

  const fs::path& path() const { return temporary_.path(); }
  // Throws as commit(), for whoever reads at path() what was written.
  void require_in_place() const { temporary_.require_in_place(); }
  // Syncs all that is in it, which may take long. Throws as commit().
  void sync() const;
  // Replaces whatever stands at the final path, which is then given to `remove`, by the temporary
  // name or one that begins with it; without `remove`, all of it is removed. Throws Error(generic)
  // where another process holds what stands there, and where the directory is not at path() any
  // more: what is written there since is not all of it.
  void commit(const std::function<void(const fs::path& replaced)>& remove = {});

 private:
  fs::path final_;
  TemporaryClaim temporary_;
};

}  // namespace jackscrew
