// Conversations as text: which pieces a model reads and which it is trained to write.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace jackscrew {

struct Message {
  std::string role;  // "system", "user", "assistant" or "tool"
  std::string content;
  bool trained = true;  // false: an assistant's message that is context only
};

struct ChatFormat {
  enum class Kind {
    plain,  // every message but the assistant's is followed by an empty line
    chatml  // <|im_start|>role, newline, content, <|im_end|>, newline
  };
  Kind kind = Kind::plain;
  std::string default_system;  // put first where a conversation has no system message; may be empty
};

// A piece of a rendered conversation.
struct Segment {
  std::string text;
  bool trained = false;
  // `text` is the template's own marker, to be read as one special token where the vocabulary has
  // it. Other segments are contents: special tokens spelled out in them stay plain text.
  bool marker = false;
};

// What a Jinja template amounts to: chatml where it writes <|im_start|>, with the system prompt it
// holds as a literal, otherwise plain. The template is searched, not run.
ChatFormat detect_chat_format(std::string_view template_text);

// The format that the recipe's `chat_template` names: "auto" (from the model's template), "chatml"
// or "plain". Throws Error(usage) for any other name.
ChatFormat chat_format(std::string_view name, std::string_view template_text);

// Renders a conversation. An assistant's answer and the token that ends it are trained; all else is
// not. `eos_text` ends an answer in the plain format. Throws Error(model) when that is needed and
// empty. With `answer_follows` the text ends where an assistant's answer would begin.
std::vector<Segment> render_chat(const ChatFormat& format, std::span<const Message> messages,
                                 std::string_view eos_text, bool answer_follows = false);

// Ids, and for each whether it is trained (1) or not (0). Neighbouring contents that are trained
// alike are encoded as one text; where training begins the text is cut as it is when the model
// generates. A BOS token leads where the tokenizer adds one by default and the text does not begin
// with it.
struct EncodedSegments {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;
};
EncodedSegments encode_segments(const Tokenizer& tokenizer, std::span<const Segment> segments);

}  // namespace jackscrew
