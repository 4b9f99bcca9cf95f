// Which template a conversation is rendered with, and what of a tokenizer it sees.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/error.h"
#include "text/jinja/template.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// A parsed template, or the reason why the model's own cannot be used; with neither, there is none.
struct ChatTemplate {
  std::shared_ptr<const jinja::Template> jinja;
  std::string source;  // the source of `jinja`
  std::optional<Error> refusal;

  bool is_none() const { return jinja == nullptr && !refusal; }
};

// How a conversation becomes text: by a template or, where the model has none, plainly (an answer
// is followed by EOS, every other message by an empty line).
struct ChatFormat {
  ChatTemplate general;             // none: plain
  ChatTemplate tools;               // for conversations with tools; none: `general`
  jinja::Variables special_tokens;  // bos_token and so on, those that exist
  std::string eos_token;            // may be empty
  jinja::DateTime now;              // the time that strftime_now formats

  bool is_plain() const { return general.is_none(); }
  bool uses_clock() const;  // whether a template formats the time
  // Those of `tokenizer.named_tokens` that a template mentions: texts depend on no others.
  std::map<std::string, int32_t> mentioned_tokens(const TokenizerData& tokenizer) const;
};

// Throws Error(usage) unless `name` can be a recipe's `chat_template`: "auto", "plain", a built-in
// one, or a path that ends in ".jinja", at which nothing is looked.
void require_chat_template(std::string_view name);

// The format that the recipe's `chat_template` names: "auto" (the model's own template, or plain),
// "plain", a built-in one or that of a file. Throws Error(usage) for any other name and
// Error(model) for a file that cannot be read or parsed. If the model's own template is refused,
// that is an error only when a conversation is rendered.
ChatFormat chat_format(std::string_view name, const TokenizerData& tokenizer,
                       const jinja::DateTime& now);

// Parses "today" (nullopt) or YYYY-MM-DD. Throws Error(usage).
std::optional<std::chrono::year_month_day> parse_chat_date(std::string_view text);
// The given day at midnight; nullopt: today's, by this machine's clock.
jinja::DateTime chat_clock(const std::optional<std::chrono::year_month_day>& day);
// The error where an answer has no token to end it.
Error no_end_token();

}  // namespace jackscrew
