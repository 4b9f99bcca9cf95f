// The names under which records have what is trained on: those of files that call it otherwise.
#pragma once

#include <string>

namespace jackscrew {

struct RecordFields {
  std::string messages = "messages";        // a list of messages
  std::string instruction = "instruction";  // a question; with `output` a record
  std::string input = "input";              // what belongs to the question; may be missing
  std::string output = "output";            // its answer
  std::string system = "system";            // beside any of them; may be missing
  std::string tools = "tools";              // the same
  std::string text = "text";                // all that is trained
  // Of each message; empty: OpenAI's `role` and `content`, or ShareGPT's `from` and `value`.
  std::string role, content;

  bool operator==(const RecordFields&) const = default;
};

}  // namespace jackscrew
