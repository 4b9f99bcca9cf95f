// A disk of a few MiB, for tests of what happens when it is full.
#pragma once

#include <sys/mount.h>

#include <string>

#include "base/file.h"

namespace jackscrew {

// Mounted at a directory, which is made, while it lives; where nothing may be mounted the directory
// is an ordinary one.
class SmallDisk {
 public:
  // `size` as mount takes it: "16m".
  SmallDisk(const fs::path& path, const std::string& size) : path_(path) {
    fs::create_directories(path_);
    mounted_ = ::mount("none", path_.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  }
  ~SmallDisk() {
    if (mounted_) ::umount2(path_.c_str(), MNT_DETACH);
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;

  bool mounted() const { return mounted_; }

 private:
  fs::path path_;
  bool mounted_;
};

}  // namespace jackscrew

// The first line of a test after the disk.
#define SKIP_UNLESS_MOUNTED(disk) \
  if (!(disk).mounted()) GTEST_SKIP() << "no right to mount a small disk"
