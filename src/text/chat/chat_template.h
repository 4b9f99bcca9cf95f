// Turns conversations into text: which pieces a model reads, and which it is trained to write.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/text.h"
#include "text/chat/chat_format.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// What a template finds as a message's `content`: its text, None, or no such key. Only a message
// with tool calls may lack the text.
enum class MessageContent { text, none, absent };

struct Message {
  std::string role;  // "system", "user", "assistant", "tool" or "ipython", Llama 3.1's word for it
  std::string content;
  bool trained = true;                         // false: an assistant's message that is context only
  MessageContent kind = MessageContent::text;  // not text: `content` is empty
  jinja::Variables fields = {};  // what else a template may read: tool_calls, tool_call_id ...
};

// Whether an answer that is to be trained has nothing but space, and no field that `is_written`.
template <class IsWritten>
bool is_empty_answer(const Message& message, const IsWritten& is_written) {
  return message.role == "assistant" && message.trained && is_blank(message.content) &&
         std::ranges::none_of(message.fields, is_written);
}

// A piece of a rendered conversation.
struct Segment {
  std::string text;
  bool trained = false;
  // `text` is the template's own: special tokens spelled out in it are special tokens. Other
  // segments are contents, in which they stay plain text.
  bool is_template_text = false;
};

struct RenderedChat {
  std::vector<Segment> segments;
  // Answers that should be trained and cannot be, because their part of the text is unknown, or the
  // template writes none of it within {% generation %}.
  int64_t untrainable = 0;
  int64_t thoughtless = 0;  // those of them that could be with a reasoning_content
  // Trained answers that follow a part of the generation prompt: the template ends that with more,
  // such as `<think>`, which it does not write before an answer.
  int64_t after_part_of_prompt = 0;
  // There are tools or tool calls, or an assistant's thoughts (reasoning_content), and the template
  // mentions none.
  bool unused_tools = false;
  bool unused_thoughts = false;
  // A trained answer has nothing but space, and no field that the template mentions.
  bool empty_answer = false;
};

// Whether render_chat() gives templates a variable of that name, which no conversation can bring.
// Names of a model's own tokens are none: a conversation can bring another value.
bool is_own_variable(std::string_view name);

// Renders a conversation. An assistant's answer and the token that ends it are trained, all else is
// not. With `answer_follows` it is a prompt: the text ends where an assistant's answer would begin,
// and none of it is trained. The template sees `tools` under that name: a list, or none; and
// `variables`, of other names than its own.
//
// If the template has {% generation %}, what is written within is trained. Otherwise an answer is
// found by rendering twice: once up to the message before it, with the generation prompt, and once
// including it; the difference is the answer, without the whitespace that the template writes after
// its end. Each rendering must be an exact prefix of the next and of the whole text, or the answer
// is not trainable; of the prompt, a part that ends where the answer's own text begins is enough.
//
// Throws Error(model) where the template is refused or fails (jinja::UnfitValues where another
// conversation may pass) and where the plain format has no EOS, Error(data) where the template
// refuses the conversation and where the plain format has no place for its tools and variables.
RenderedChat render_chat(const ChatFormat& format, std::span<const Message> messages,
                         bool answer_follows = false, const jinja::Value& tools = jinja::None{},
                         const jinja::Variables& variables = {});

// Token ids, and for each whether it is trained (1) or not (0). Adjacent segments that are both
// trained, or both not, are encoded as one text; where training begins the text is cut, as it is
// when the model generates. The ids begin with one BOS token where the tokenizer adds one by
// default or the template writes it, never with two.
struct EncodedSegments {
  std::vector<int32_t> ids;
  std::vector<uint8_t> trained;
  bool dropped_bos = false;  // the template wrote BOS twice at the beginning
  int64_t unended = 0;       // trained parts that do not end in a special token
};
EncodedSegments encode_segments(const Tokenizer& tokenizer, std::span<const Segment> segments);

}  // namespace jackscrew
