// Runs the built program as a user would.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/file.h"
#include "tests/support/paths.h"

namespace jackscrew {

struct Outcome {
  int exit_code = -1;
  std::string out;  // stdout, or what the redirection in the arguments puts there
};

inline Outcome run_shell(const std::string& command) {
  Outcome outcome;
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return outcome;
  char buffer[4096];
  for (size_t got = 0; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) {
    outcome.out.append(buffer, got);
  }
  const int status = ::pclose(pipe);
  outcome.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return outcome;
}

inline Outcome run(const std::string& arguments) {
  return run_shell(std::string(kProgram) + " " + arguments);
}

inline constexpr const char* kErrorsOnly = " 2>&1 >/dev/null";

// The root of the source.
inline fs::path source_root() {
  return fs::path(kTestData).parent_path();
}

// A directory of this process that goes with the object.
class TemporaryDirectory {
 public:
  explicit TemporaryDirectory(const std::string& name)
      : path_(fs::temp_directory_path() / (name + "_" + std::to_string(::getpid()))) {
    fs::create_directories(path_);
  }
  ~TemporaryDirectory() { fs::remove_all(path_); }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;

  const fs::path& path() const { return path_; }
  // Writes a file there and returns its path as text.
  std::string file(const std::string& name, const std::string& text) const {
    write_text_atomic(path_ / name, text);
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

inline std::string golden_model(const std::string& name) {
  return std::string(kTestData) + "/golden/" + name;
}

}  // namespace jackscrew
