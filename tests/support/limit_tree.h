// Limits of control groups, in a tree of files as Linux shows them.
#pragma once

#include <unistd.h>

#include <string>

#include "base/file.h"

namespace jackscrew {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr const char* kMountedV2 =
    "25 1 0:22 / /proc rw - proc proc rw\n"
    "31 25 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n";

// A directory of this process that goes with the object.
class LimitTree {
 public:
  LimitTree()
      : root_(fs::temp_directory_path() / ("jackscrew_cgroup_" + std::to_string(::getpid()))) {}
  ~LimitTree() { fs::remove_all(root_); }
  LimitTree(const LimitTree&) = delete;
  LimitTree& operator=(const LimitTree&) = delete;

  const fs::path& root() const { return root_; }
  void file(const std::string& path, const std::string& text) const {
    fs::create_directories((root_ / path).parent_path());
    write_text_atomic(root_ / path, text);
  }
  // The mounts and groups that the process sees.
  void process(const std::string& mounts, const std::string& groups) const {
    file("proc/self/mountinfo", mounts);
    file("proc/self/cgroup", groups);
  }
  void group_v2(const std::string& group, const std::string& limit, int64_t used,
                const std::string& stat = "anon 1\n") const {
    const std::string directory = "sys/fs/cgroup" + group;
    file(directory + "/memory.max", limit + "\n");
    file(directory + "/memory.current", std::to_string(used) + "\n");
    file(directory + "/memory.stat", stat);
  }

 private:
  const fs::path root_;
};

}  // namespace jackscrew
