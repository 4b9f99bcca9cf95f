// Errors: one exception type that carries what went wrong, what to do about it, and the exit code.
#pragma once

#include <fmt/format.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace jackscrew {

// What kind of thing went wrong. The value is the exit code of the program (documented in
// docs/cli.md).
enum class ErrorKind : int {
  generic = 1,       // anything without a kind of its own, a full disk included
  usage = 2,         // command line or recipe
  does_not_fit = 3,  // a memory budget is too small
  data = 4,          // training or evaluation text
  model = 5,         // model, tokenizer, adapter or checkpoint files
  non_finite = 6,    // NaN or infinity in loss, gradients or weights; a loss that stays too high
  device = 7,        // the device is missing or unfit
  interrupted = 130  // stopped by the user
};

// Thrown by every room. `what()` is one line: what and where. `hint()` says what to do, or is
// empty.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what, std::string hint = {})
      : std::runtime_error(what), kind_(kind), hint_(std::move(hint)) {}

  ErrorKind kind() const { return kind_; }
  const std::string& hint() const { return hint_; }
  int exit_code() const { return static_cast<int>(kind_); }

 private:
  ErrorKind kind_;
  std::string hint_;
};

// Thrown where a disk or a quota is full: the same may succeed when there is room.
class FullDisk : public Error {
 public:
  using Error::Error;
};

// Thrown where the system refuses to open or to read a file that may be there: what is in it is not
// known, so it is not damaged, and the same may succeed later.
class Unreadable : public Error {
 public:
  using Error::Error;
};

bool is_unreadable(const std::exception& exception);

// A hint where one of these has none.
inline constexpr const char* kSeeThatItCanBeRead = "see that it can be read, and run again";

// Thrown where the system refuses memory for what a session holds. The hint also names
// device_memory: with less of that a run takes another way, or is refused before it has begun.
class SystemOutOfMemory : public Error {
 public:
  // `budget`: what device_memory is to be set to.
  SystemOutOfMemory(const std::string& what, const std::string& hint, const std::string& budget)
      : Error(ErrorKind::does_not_fit, what, hint + ", or set device_memory to " + budget),
        plain_hint_(hint) {}

  // For a command to which device_memory would give nothing.
  Error without_budget() const { return {kind(), what(), plain_hint_}; }

 private:
  std::string plain_hint_;
};

// Returns what `run` returns, the work of a command to which device_memory gives nothing: it is the
// budget of another run, or does no more than refuse.
template <class Run>
auto without_budget_hint(const Run& run) {
  try {
    return run();
  } catch (const SystemOutOfMemory& error) {
    throw Error(error.without_budget());
  }
}

// An exception as what users are told: std::bad_alloc as Error(does_not_fit), whose hint names a
// limit of the process, an Error as it is, any other as Error(generic).
Error error_of(const std::exception& exception);
// Whether that is more than Error(generic) with the exception's words.
bool is_own_error(const std::exception& exception);

// Throws an Error with a formatted message and no hint.
template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace jackscrew
