// Examples: token ids, and which of them a model is trained to predict.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/records.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// What is not as it should be in conversations.
struct ChatNotes {
  int64_t untrainable = 0;   // answers whose part of the text is not known
  int64_t unended = 0;       // trained answers without a token that ends them
  int64_t dropped_bos = 0;   // conversations that began with BOS twice
  int64_t unused_tools = 0;  // conversations with tools of which the chat template knows none
  int64_t empty = 0;         // records with an answer to be trained that is empty

  ChatNotes& operator+=(const ChatNotes& other);
  bool operator==(const ChatNotes&) const = default;
};

struct Example {
  std::vector<int32_t> ids;
  std::vector<uint8_t> train;  // one for each id; 1: this token is a target
  ChatNotes notes = {};

  // Targets that count: the first token is predicted from nothing and never does.
  int64_t target_count() const;
};

struct ExampleOptions {
  bool train_on_inputs = false;  // every token is trained, the user's too
  ChatFormat format;
  RecordFields fields = {};  // by which encode_records() reads
};

// The example of one record, whole; `place` is for messages. Of a DocumentRecord the part that it
// holds, with BOS before the first where the tokenizer adds one by default. Throws what
// render_chat throws.
Example encode_record(const Tokenizer& tokenizer, const ExampleOptions& options,
                      const Record& record, const std::string& place);

}  // namespace jackscrew
