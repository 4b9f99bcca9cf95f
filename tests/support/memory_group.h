// A memory limit for the program.
#pragma once

#include <unistd.h>

#include <fstream>
#include <string>

#include "tests/cli/run_program.h"
#include "tests/support/paths.h"

namespace jackscrew {

// A control group of version 1 or 2 for this test; `path` is empty where none can be made.
class MemoryGroup {
 public:
  explicit MemoryGroup(int64_t bytes) {
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                      std::pair("/sys/fs/cgroup", "memory.max")}) {
      if (!fs::exists(fs::path(root) / "cgroup.procs")) continue;
      path_ = fs::path(root) / ("jackscrew_test_" + std::to_string(::getpid()));
      std::error_code error;
      fs::create_directory(path_, error);
      std::ofstream file(path_ / limit);
      file << bytes << std::flush;
      if (!error && file) return;
      remove();
    }
  }
  ~MemoryGroup() { remove(); }
  MemoryGroup(const MemoryGroup&) = delete;
  MemoryGroup& operator=(const MemoryGroup&) = delete;

  const fs::path& path() const { return path_; }
  Outcome run_within(const std::string& arguments) const {
    return run_shell("echo $$ > " + (path_ / "cgroup.procs").string() + "; exec " +
                     std::string(kProgram) + " " + arguments);
  }

 private:
  void remove() {
    if (!path_.empty()) ::rmdir(path_.c_str());
    path_.clear();
  }

  fs::path path_;
};

}  // namespace jackscrew
