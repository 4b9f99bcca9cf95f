#include "text/chat/chat_template.h"

#include <algorithm>

#include "base/text.h"
#include "text/jinja/failure.h"

namespace jackscrew {

namespace {

using jinja::Text;
using jinja::Value;

void add(std::vector<Segment>& segments, std::string_view text, bool trained,
         bool is_template_text) {
  if (text.empty()) return;
  if (!segments.empty() && segments.back().trained == trained &&
      segments.back().is_template_text == is_template_text) {
    segments.back().text += text;
  } else {
    segments.push_back({std::string(text), trained, is_template_text});
  }
}

constexpr std::string_view kCalls = "tool_calls";
constexpr std::string_view kIpython = "ipython";

bool has_calls(const Message& message) {
  const jinja::Value* calls = jinja::find_variable(message.fields, std::string(kCalls));
  return calls != nullptr && calls->truth();
}

// Where data have what a model thought before its answer.
constexpr std::string_view kThoughts[] = {"reasoning_content", "reasoning", "thinking"};

// Notes what is in a conversation's messages that its format does not write. `mentions(name)` says
// whether it may write a field.
template <class Mentions>
void note_unwritten(std::span<const Message> messages, const Mentions& mentions,
                    RenderedChat& chat) {
  for (const Message& message : messages) {
    if (message.role != "assistant") continue;
    const auto is_written = [&](const auto& field) {
      return field.second.truth() && mentions(field.first);
    };
    const auto is_thought = [](const auto& field) {
      return field.second.truth() &&
             std::ranges::find(kThoughts, field.first) != std::end(kThoughts);
    };
    const bool has_thoughts = std::ranges::any_of(message.fields, is_thought);
    if (has_thoughts && std::ranges::none_of(kThoughts, mentions)) chat.unused_thoughts = true;
    if (is_empty_answer(message, is_written)) chat.empty_answer = true;
  }
}

bool lacks_text(const Message& message) {
  return message.kind != MessageContent::text;
}

constexpr const char* kAddContent =
    "a message with tool calls has no content, which this template may need; add \"content\": \"\" "
    "to it";

std::vector<Segment> render_plain(std::string_view eos_token, std::span<const Message> messages,
                                  bool answer_follows, const Value& tools,
                                  const jinja::Variables& variables) {
  if (tools.truth() || std::ranges::any_of(messages, has_calls)) {
    throw Error(ErrorKind::data, "the plain format does not support tools and tool calls",
                "a model's own template may support them; the built-in ones leave them out");
  }
  if (!variables.empty()) {
    throw Error(
        ErrorKind::data,
        fmt::format("the plain format has no variables, \"{}\" for one", variables.front().first),
        "leave chat_template_kwargs out of the file, or set a chat_template that has them");
  }
  std::vector<Segment> segments;
  for (const Message& message : messages) {
    if (message.role != "assistant") {
      add(segments, message.content + "\n\n", false, false);
      continue;
    }
    if (eos_token.empty()) {
      throw no_end_token();
    }
    const bool trained = message.trained && !answer_follows;
    add(segments, message.content, trained, false);
    add(segments, eos_token, trained, true);
  }
  return segments;
}

// A part of a text, in bytes.
struct Span {
  size_t begin, end;
  bool after_part_of_prompt = false;  // of an answer: see RenderedChat
};

// Renders one conversation with its template, and finds its answers.
class Renderer {
 public:
  Renderer(const ChatFormat& format, std::span<const Message> messages, bool answer_follows,
           const Value& tools, const jinja::Variables& variables, const jinja::Template& jinja)
      : format_(format),
        jinja_(jinja),
        messages_(messages),
        answer_follows_(answer_follows),
        tools_(tools),
        variables_(variables) {
    for (const Message& message : messages) {
      std::vector<std::pair<Value, Value>> items;
      const auto add = [&](const std::string& key, Value value) {
        items.emplace_back(Value::text(key), std::move(value));
      };
      // A role is one of a few known words and counts as template text, since a template may make
      // special tokens of it.
      const bool knows_role = message.role != kIpython || jinja.mentions(kIpython);
      add("role", Value::text(knows_role ? message.role : "tool", jinja::kTemplate));
      if (message.kind == MessageContent::text) {
        add("content", Value::text(message.content));
      } else if (message.kind == MessageContent::none) {
        add("content", jinja::None{});
      }
      for (const auto& [name, value] : message.fields) add(name, value);
      values_.push_back(Value::dict(std::move(items)));
    }
  }

  RenderedChat render() {
    const Text text = first(messages_.size(), answer_follows_);
    std::vector<uint8_t> trained(text.size(), 0);
    RenderedChat chat;
    // A prompt is not trained, and finding an answer takes two renderings.
    if (!answer_follows_) mark_trained(text, trained, chat);
    chat.unused_tools = (tools_.truth() && !jinja_.mentions("tools")) ||
                        (std::ranges::any_of(messages_, has_calls) && !jinja_.mentions(kCalls));
    note_unwritten(
        messages_, [&](std::string_view name) { return jinja_.mentions(name); }, chat);
    size_t begin = 0;
    for (const Text::Run& run : text.runs()) {
      while (begin < run.end) {
        size_t end = begin;
        while (end < run.end && trained[end] == trained[begin]) ++end;
        add(chat.segments, text.view().substr(begin, end - begin), trained[begin] != 0,
            (run.origin & jinja::kTemplate) != 0);
        begin = end;
      }
    }
    return chat;
  }

 private:
  bool is_answer(size_t message) const { return messages_[message].role == "assistant"; }

  // Renders the conversation's first `count` messages.
  Text first(size_t count, bool answer_follows) const {
    // The first of a name counts: a conversation's go before the model's own tokens, as in
    // transformers.
    jinja::Variables variables = variables_;
    const auto end = values_.begin() + static_cast<std::ptrdiff_t>(count);
    variables.emplace_back("messages", Value::list({values_.begin(), end}));
    variables.emplace_back("add_generation_prompt", answer_follows);
    variables.emplace_back("tools", tools_);
    variables.emplace_back("documents", jinja::None{});
    const jinja::Variables& tokens = format_.special_tokens;
    variables.insert(variables.end(), tokens.begin(), tokens.end());
    return jinja_.render(variables, format_.now);
  }

  // nullopt: a template may refuse the beginning of what it accepts.
  std::optional<Text> try_first(size_t count, bool answer_follows) const {
    try {
      return first(count, answer_follows);
    } catch (const Error&) {
      return std::nullopt;
    }
  }

  // The span of an answer in the rendering that ends with it; nullopt where its beginning cannot be
  // determined.
  std::optional<Span> span_in(const Text& through, size_t answer) const {
    const std::optional<Text> prompt = try_first(answer, true);
    if (prompt && through.view().starts_with(prompt->view())) {
      return Span{prompt->size(), through.size()};
    }
    // Of no messages a template need not write what it writes before the first: a default system
    // prompt, say. There an answer begins with its content.
    if (answer == 0) return from_content(through, answer, 0);
    // The prompt may go on with what the template does not write before an answer that is there:
    // `<think>`. Then it begins with its content, if that is where they part.
    const std::optional<Text> context = try_first(answer, false);
    if (!prompt || !context || !through.view().starts_with(context->view())) return std::nullopt;
    auto span = from_content(through, answer, context->size());
    if (!span || !prompt->view().starts_with(through.view().substr(0, span->begin))) {
      return std::nullopt;
    }
    span->after_part_of_prompt = true;
    return span;
  }

  // The span from the first text behind `from` that the template did not write; nullopt unless that
  // text is part of the answer's content.
  std::optional<Span> from_content(const Text& through, size_t answer, size_t from) const {
    size_t begin = 0;
    for (const Text::Run& run : through.runs()) {
      if (run.end > from && (run.origin & jinja::kTemplate) == 0) {
        const std::string_view written = through.view().substr(begin, run.end - begin);
        if (jinja::find_text(messages_[answer].content, written) == std::string::npos) break;
        return Span{begin, through.size()};
      }
      begin = run.end;
    }
    return std::nullopt;
  }

  // The span of an answer and its end token in `text`; nullopt where it cannot be determined.
  std::optional<Span> locate(size_t answer, const Text& text) const {
    // Most conversations end with the answer: then `text` itself is that rendering.
    const bool is_last = answer + 1 == messages_.size();
    const std::optional<Text> through = is_last ? text : try_first(answer + 1, false);
    if (!through || !text.view().starts_with(through->view())) return std::nullopt;
    std::optional<Span> span = span_in(*through, answer);
    if (!span) return std::nullopt;
    const auto template_space = [&](size_t at) {
      return (through->origin_at(at) & jinja::kTemplate) != 0 &&
             jinja::is_space(static_cast<uint8_t>(through->view()[at]));
    };
    while (span->end > span->begin && template_space(span->end - 1)) --span->end;
    return span;
  }

  // Whether the template would write this answer's thoughts if it had any, whatever follows it.
  // Qwen 3's does so for answers behind the last question, which call tools.
  bool would_keep_thoughts(size_t answer) const {
    const Value* own = jinja::find_variable(messages_[answer].fields, std::string(kThoughts[0]));
    const auto is_question = [](const Message& message) { return message.role == "user"; };
    return (own == nullptr || !own->truth()) && jinja_.mentions(kThoughts[0]) &&
           std::ranges::none_of(messages_.subspan(answer), is_question);
  }

  void mark_trained(const Text& text, std::vector<uint8_t>& trained, RenderedChat& chat) const {
    if (jinja_.has_generation()) {
      chat.untrainable = train_generated(text, trained);
    } else {
      train_answers(text, trained, chat);
    }
  }

  void train_answers(const Text& text, std::vector<uint8_t>& trained, RenderedChat& chat) const {
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (!is_answer(i) || !messages_[i].trained) continue;
      if (const auto span = locate(i, text)) {
        mark(trained, *span, 1);
        if (span->after_part_of_prompt) ++chat.after_part_of_prompt;
      } else {
        ++chat.untrainable;
        if (would_keep_thoughts(i)) ++chat.thoughtless;
      }
    }
  }

  int64_t train_generated(const Text& text, std::vector<uint8_t>& trained) const {
    size_t begin = 0;
    for (const Text::Run& run : text.runs()) {
      if ((run.origin & jinja::kGenerated) != 0) mark(trained, {begin, run.end}, 1);
      begin = run.end;
    }
    const int64_t missed = not_generated(text, trained);
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (!is_answer(i) || messages_[i].trained) continue;
      if (const auto span = locate(i, text)) {
        mark(trained, *span, 0);
        continue;
      }
      // An answer that must not be trained cannot be told from the rest: then nothing is trained.
      std::fill(trained.begin(), trained.end(), uint8_t{0});
      return std::count_if(messages_.begin(), messages_.end(), [](const Message& message) {
        return message.role == "assistant" && message.trained;
      });
    }
    return missed;
  }

  // The answers to be trained that have a text, of which nothing is `generated`. Whatever is
  // generated is taken for that of a single answer: finding one takes two renderings.
  int64_t not_generated(const Text& text, const std::vector<uint8_t>& generated) const {
    const bool has_any = std::ranges::find(generated, uint8_t{1}) != generated.end();
    const auto answers = std::ranges::count(messages_, "assistant", &Message::role);
    if (has_any && answers <= 1) return 0;
    const auto is_outside = [&](size_t answer) {
      if (!has_any) return true;
      const auto span = locate(answer, text);
      return span && std::all_of(generated.begin() + static_cast<std::ptrdiff_t>(span->begin),
                                 generated.begin() + static_cast<std::ptrdiff_t>(span->end),
                                 [](uint8_t one) { return one == 0; });
    };
    const auto is_filled = [](const auto& field) { return field.second.truth(); };
    int64_t count = 0;
    for (size_t i = 0; i < messages_.size(); ++i) {
      if (!is_answer(i) || !messages_[i].trained) continue;
      if (!is_empty_answer(messages_[i], is_filled) && is_outside(i)) ++count;
    }
    return count;
  }

  static void mark(std::vector<uint8_t>& trained, const Span& span, uint8_t value) {
    std::fill(trained.begin() + static_cast<std::ptrdiff_t>(span.begin),
              trained.begin() + static_cast<std::ptrdiff_t>(span.end), value);
  }

  const ChatFormat& format_;
  const jinja::Template& jinja_;
  std::span<const Message> messages_;
  bool answer_follows_;
  Value tools_;
  const jinja::Variables& variables_;  // of the conversation
  jinja::Values values_;
};

}  // namespace

bool is_own_variable(std::string_view name) {
  constexpr std::string_view kNames[] = {"bos_token",  "eos_token", "unk_token",
                                         "pad_token",  "sep_token", "cls_token",
                                         "mask_token", "messages",  "add_generation_prompt",
                                         "tools",      "documents"};
  return std::ranges::find(kNames, name) != std::end(kNames);
}

RenderedChat render_chat(const ChatFormat& format, std::span<const Message> messages,
                         bool answer_follows, const Value& tools,
                         const jinja::Variables& variables) {
  const bool own = !tools.is_none() && !format.tools.is_none();
  const ChatTemplate& chat = own ? format.tools : format.general;
  if (chat.refusal) throw Error(*chat.refusal);
  if (chat.is_none()) {
    RenderedChat plain{render_plain(format.eos_token, messages, answer_follows, tools, variables)};
    note_unwritten(
        messages, [](std::string_view) { return false; }, plain);
    return plain;
  }
  try {
    return Renderer(format, messages, answer_follows, tools, variables, *chat.jinja).render();
  } catch (const jinja::UnfitValues& error) {
    if (!std::ranges::any_of(messages, lacks_text)) throw;
    throw jinja::UnfitValues(error.what(), kAddContent);
  } catch (const Error& error) {
    if (!error.hint().empty() || !std::ranges::any_of(messages, lacks_text)) throw;
    throw Error(error.kind(), error.what(), kAddContent);
  } catch (const jinja::Failure& failure) {
    // Messages beyond the limits of values, before the template has seen them.
    throw Error(ErrorKind::data, failure.what());
  }
}

}  // namespace jackscrew
