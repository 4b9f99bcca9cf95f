// A variable of this process's environment for as long as a test wants it.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>

namespace jackscrew {

class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    set(value);
  }
  ~EnvironmentVariable() {
    if (before_) {
      set(*before_);
    } else {
      ::unsetenv(name_);
    }
  }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  void set(const std::string& value) const { ::setenv(name_, value.c_str(), 1); }

  const char* name_;
  std::optional<std::string> before_;
};

}  // namespace jackscrew
