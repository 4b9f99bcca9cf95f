// A limit of memory around the program.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <string>
#include <utility>

#include "tests/cli/run_program.h"

namespace jackscrew {

// A control group of version 1 or 2 for this test; `path` is empty where none can be made.
class Group {
 public:
  explicit Group(int64_t bytes) {
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
  ~Group() { remove(); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

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
