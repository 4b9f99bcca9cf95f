// Memory in files: each piece a file of its own in one directory, mapped.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/directory_handle.h"
#include "tensor/memory.h"

namespace jackscrew {

// Files are reached through the directory that was made, wherever that is moved. A file that has
// got a second name (a checkpoint) keeps its bytes when its piece is given back.
class FileBacking : public Backing {
 public:
  // Makes the directory anew. Throws Error(generic) where that is refused.
  explicit FileBacking(const fs::path& directory);
  ~FileBacking() override;

  // Zeroed bytes with room on the disk: storing to them cannot fail later. Throws Error(generic)
  // where the disk is full and no spare file has the size.
  void* acquire(size_t bytes) override;
  void release(void* data, size_t bytes) override;
  fs::path file_of(const void* data) const override;
  void will_need(const void* data, size_t bytes) override;

  // Makes sure that pieces can be replaced by others of their size, acquired before the old ones
  // are released, however full the disk becomes: one at a time or, where all files are about to get
  // a second name, each of them once besides. Spare files hold the room. Throws Error(generic)
  // where there is none.
  enum class Replaced { one_at_a_time, each };
  void reserve(Replaced replaced);

 private:
  std::string new_file(size_t bytes);
  std::string take_spare(size_t bytes);
  void remove(const std::string& name) const;
  void remove_excess();

  DirectoryHandle directory_;
  int64_t next_ = 0;
  std::map<const void*, std::string> names_;           // by address
  std::map<size_t, std::vector<std::string>> spares_;  // by size
  std::map<size_t, size_t> wanted_spares_;             // by size
};

}  // namespace jackscrew
