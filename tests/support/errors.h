// Errors that a test expects.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace jackscrew {

// "message | hint" of the Error of `kind` that `action` throws; a failure where it throws none.
template <class Action>
std::string error_of(ErrorKind kind, const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    return std::string(error.what()) + " | " + error.hint();
  }
  ADD_FAILURE() << "nothing was thrown";
  return {};
}

// The two sides of what error_of() returns.
inline std::string message_of(const std::string& error) {
  return error.substr(0, error.rfind(" | "));
}
inline std::string hint_of(const std::string& error) {
  const size_t bar = error.rfind(" | ");
  return bar == std::string::npos ? std::string() : error.substr(bar + 3);
}

// Expects such an Error, with `part` in its message.
template <class Action>
void expect_message(ErrorKind kind, const std::string& part, const Action& action) {
  SCOPED_TRACE("a message with \"" + part + "\"");
  const std::string message = message_of(error_of(kind, action));
  EXPECT_NE(message.find(part), std::string::npos) << message;
}

// Expects such an Error, with `part` in its message or hint.
template <class Action>
void expect_error(ErrorKind kind, const std::string& part, const Action& action) {
  SCOPED_TRACE("an error with \"" + part + "\"");
  const std::string text = error_of(kind, action);
  EXPECT_NE(text.find(part), std::string::npos) << text;
}

}  // namespace jackscrew
