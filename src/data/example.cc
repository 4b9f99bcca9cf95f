#include "data/example.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "base/error.h"
#include "base/text.h"
#include "text/utf8.h"

namespace jackscrew {

namespace {

// Counts the bytes of a text that are not UTF-8.
void note_other_bytes(const Tokenizer& tokenizer, std::string_view text, RecordNotes& notes) {
  for (size_t at = utf8_valid_prefix(text); at < text.size();
       at += utf8_valid_prefix(text.substr(at))) {
    const size_t length = utf8_step(text, at).length;
    notes.not_utf8 += static_cast<int64_t>(length);
    for (const char byte : text.substr(at, length)) {
      if (!tokenizer.has_byte(static_cast<uint8_t>(byte))) ++notes.without_token;
    }
    at += length;
  }
}

// Whether the first line is an object of JSON, as in a file of records with another name.
bool begins_as_json_lines(std::string_view text) {
  return text.starts_with('{') && nlohmann::json::accept(text.substr(0, text.find('\n')));
}

Example from_chat(const Tokenizer& tokenizer, const RenderedChat& chat) {
  EncodedSegments encoded = encode_segments(tokenizer, chat.segments);
  return {std::move(encoded.ids),
          std::move(encoded.trained),
          {.untrainable = chat.untrainable,
           .thoughtless = chat.thoughtless,
           .after_part_of_prompt = chat.after_part_of_prompt,
           .unended = encoded.unended,
           .dropped_bos = encoded.dropped_bos ? 1 : 0,
           .unused_tools = chat.unused_tools ? 1 : 0,
           .unused_thoughts = chat.unused_thoughts ? 1 : 0,
           .empty = chat.empty_answer ? 1 : 0}};
}

// Text that is trained throughout; special tokens spelled out in it are recognised.
Example from_text(const Tokenizer& tokenizer, std::string_view text, bool begins,
                  bool end_with_eos) {
  Example example;
  example.ids = tokenizer.encode(text, true, begins ? TextPlace::begin : TextPlace::inside);
  const bool has_bos = !example.ids.empty() && example.ids.front() == tokenizer.bos();
  if (begins && tokenizer.add_bos() && !has_bos) {
    example.ids.insert(example.ids.begin(), tokenizer.bos());
  }
  example.spelled_ids = std::ssize(example.ids);
  const bool has_eos = !example.ids.empty() && example.ids.back() == tokenizer.eos();
  if (end_with_eos && tokenizer.eos() >= 0 && !has_eos) example.ids.push_back(tokenizer.eos());
  example.train.assign(example.ids.size(), 1);
  return example;
}

}  // namespace

RecordNotes& RecordNotes::operator+=(const RecordNotes& other) {
  for (const auto& [name, count] : kNoteCounts) this->*count += other.*count;
  for (const auto& [field, records] : other.named_fields) named_fields[field] += records;
  for (const auto& [text, records] : other.unread) unread[text] += records;
  return *this;
}

int64_t Example::target_count() const {
  return train.empty() ? 0 : std::count(train.begin() + 1, train.end(), uint8_t{1});
}

bool has_empty_text(const Record& record) {
  if (const auto* chat = std::get_if<ConversationRecord>(&record)) {
    // Any field may be written by a template, tool calls for one.
    return std::ranges::any_of(chat->messages, [](const Message& message) {
      return is_empty_answer(message, [](const auto&) { return true; });
    });
  }
  if (const auto* pair = std::get_if<CompletionRecord>(&record)) return is_blank(pair->completion);
  if (const auto* text = std::get_if<TextRecord>(&record)) return is_blank(text->text);
  const auto& document = std::get<DocumentRecord>(record);
  return document.begins && document.ends && is_blank(document.text);
}

Example encode_record(const Tokenizer& tokenizer, const ExampleOptions& options,
                      const Record& record, const std::string& place) {
  const auto conversation = [&](std::span<const Message> messages,
                                const jinja::Value& tools = jinja::None{},
                                const jinja::Variables& variables = {}) {
    try {
      return from_chat(tokenizer, render_chat(options.format, messages, false, tools, variables));
    } catch (const Error& error) {
      // Of many records those that do not fit the template are at fault, not the template.
      const bool unfit = dynamic_cast<const jinja::UnfitValues*>(&error) != nullptr;
      throw Error(unfit ? ErrorKind::data : error.kind(),
                  fmt::format("{}: {}", place, error.what()), error.hint());
    }
  };
  Example example;
  const auto count_zeros = [&](std::string_view text) {
    example.notes.zero_bytes += std::ranges::count(text, '\0');
  };
  if (const auto* chat = std::get_if<ConversationRecord>(&record)) {
    example = conversation(chat->messages, chat->tools, chat->variables);
    for (const Message& message : chat->messages) count_zeros(message.content);
  } else if (const auto* pair = std::get_if<CompletionRecord>(&record)) {
    if (options.format.is_plain()) {
      // The plain format ends an answer with EOS and puts nothing of its own before it.
      const Message answer{"assistant", pair->completion};
      RenderedChat answered = render_chat(options.format, {&answer, 1});
      answered.segments.insert(answered.segments.begin(), Segment{pair->prompt, false, false});
      example = from_chat(tokenizer, answered);
    } else {
      const Message turns[] = {{"user", pair->prompt}, {"assistant", pair->completion}};
      example = conversation(turns, pair->tools);
    }
    count_zeros(pair->prompt);
    count_zeros(pair->completion);
  } else if (const auto* text = std::get_if<TextRecord>(&record)) {
    example = from_text(tokenizer, text->text, true, true);
    count_zeros(text->text);
    example.notes.empty = has_empty_text(record) ? 1 : 0;
  } else {
    const auto& document = std::get<DocumentRecord>(record);
    example = from_text(tokenizer, document.text, document.begins, false);
    example.notes.empty = has_empty_text(record) ? 1 : 0;
    note_other_bytes(tokenizer, document.text, example.notes);
    count_zeros(document.text);
    example.notes.json_lines = document.begins && begins_as_json_lines(document.text) ? 1 : 0;
  }
  if (options.train_on_inputs) {
    std::fill(example.train.begin(), example.train.end(), uint8_t{1});
    example.notes.untrainable = example.notes.thoughtless = 0;
  }
  return example;
}

}  // namespace jackscrew
