// Memory in files: each piece is a mapped file of its own in one directory. Its pages need no
// memory while nobody accesses them.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "base/directory_handle.h"
#include "tensor/memory.h"

namespace jackscrew {

// Files are reached through the open directory, wherever it is moved. A file that has got a second
// name (in a checkpoint) keeps its bytes when its piece is released.
class FileBacking : public Backing {
 public:
  // Makes the directory anew, without what was in it; it is removed with the backing. Throws
  // Error(generic) if that fails.
  explicit FileBacking(const fs::path& directory);
  ~FileBacking() override;

  // Zeroed bytes with room on the disk: storing to them cannot fail later. Throws FullDisk where
  // the disk is full and no spare file has the size.
  void* acquire(size_t bytes) override;
  void release(void* data, size_t bytes) override;
  fs::path file_of(const void* data) const override;
  void will_need(const void* data, size_t bytes) override;
  void expect_replacement(const void* data) override;

  // Makes sure that the pieces of which expect_replacement() told can be replaced, however full the
  // disk becomes: one at a time, or, if their files are about to get a second name, each of them
  // once in addition. Spare files hold the space. Throws FullDisk if the disk does not have it.
  enum class Replaced { one_at_a_time, each };
  void reserve(Replaced replaced);

 private:
  std::string new_file(size_t bytes);
  std::string take_spare(size_t bytes);
  void remove(const std::string& name);
  void remove_excess();

  DirectoryHandle directory_;
  int64_t next_ = 0;
  struct Piece {
    std::string name;  // of its file
    bool is_replaced = false;
  };
  std::map<const void*, Piece> pieces_;                // by address
  std::map<size_t, std::vector<std::string>> spares_;  // by size
  std::map<size_t, size_t> wanted_spares_;             // by size
  std::vector<std::string> unremoved_;                 // files to be removed once more at the end
};

}  // namespace jackscrew
