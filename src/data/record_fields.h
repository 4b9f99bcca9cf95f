// The names of a record's fields, for files that call them otherwise.
#pragma once

#include <string>

namespace jackscrew {

struct RecordFields {
  std::string messages = "messages";        // a list of messages
  std::string instruction = "instruction";  // a question; makes a record with `output`
  std::string input = "input";              // context of the question; may be missing
  std::string output = "output";            // its answer
  std::string system = "system";            // beside any of them; may be missing
  std::string tools = "tools";              // the same
  std::string text = "text";                // all that is trained
  // In each message; empty: OpenAI's `role` and `content`, or ShareGPT's `from` and `value`.
  std::string role, content;

  bool operator==(const RecordFields&) const = default;
};

}  // namespace jackscrew
