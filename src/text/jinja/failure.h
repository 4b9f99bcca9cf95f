// Errors within a template.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace jackscrew::jinja {

// Thrown by everything in this directory while a template is rendered. Template turns it into an
// Error with the line. A value is not what the template takes it for: with other values it may be
// rendered.
class Failure : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The template itself is at fault, whatever the values: it goes beyond a limit, or has what lies
// outside of the subset.
class Fault : public Failure {
 public:
  using Failure::Failure;
};

// The template refuses the conversation, by raise_exception.
class Refusal : public Failure {
 public:
  using Failure::Failure;
};

// Something that a template may not contain, with its line.
class SyntaxFailure : public std::runtime_error {
 public:
  SyntaxFailure(int line, const std::string& what) : std::runtime_error(what), line_(line) {}
  int line() const { return line_; }

 private:
  int line_;
};

template <typename... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Failure(fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fault(fmt::format_string<Args...> format, Args&&... args) {
  throw Fault(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace jackscrew::jinja
