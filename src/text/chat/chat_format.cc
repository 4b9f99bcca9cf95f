#include "text/chat/chat_format.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <ctime>
#include <vector>

#include "base/file.h"
#include "base/text.h"
#include "text/chat/builtin_templates.h"

namespace jackscrew {

namespace {

using jinja::Value;

int days_of_month(int year, int month) {
  using namespace std::chrono;
  const year_month_day_last last(std::chrono::year(year),
                                 month_day_last(std::chrono::month(static_cast<unsigned>(month))));
  return static_cast<int>(static_cast<unsigned>(last.day()));
}

ChatTemplate parse_template(std::string_view source) {
  return {std::make_shared<const jinja::Template>(jinja::Template::parse(source)),
          std::string(source), std::nullopt};
}

std::string other_templates() {
  return fmt::format("set another with chat_template=: plain, {}",
                     fmt::join(builtin_template_names(), ", "));
}

// parse_template() for a template of the model: a refusal is kept until the template is needed.
ChatTemplate own_template(std::string_view source) {
  if (source.empty()) return {};
  try {
    return parse_template(source);
  } catch (const Error& error) {
    return {nullptr,
            {},
            Error(error.kind(), std::string("the model's ") + error.what(), other_templates())};
  }
}

constexpr std::string_view kFileEnding = ".jinja";

ChatTemplate template_file(const std::string& path) {
  try {
    return parse_template(read_text(path));
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("chat_template={}: {}", path, error.what()),
                error.hint());
  }
}

}  // namespace

Error no_end_token() {
  return {ErrorKind::model, "the tokenizer has no end-of-text token to end an answer with",
          "set eos_token in tokenizer_config.json, or give tokenizer=DIR"};
}

void require_chat_template(std::string_view name) {
  if (name == "auto" || name == "plain" || builtin_template(name) || name.ends_with(kFileEnding)) {
    return;
  }
  std::vector<std::string> known = builtin_template_names();
  known.insert(known.begin(), {"auto", "plain"});
  const auto nearest = nearest_name(name, known);
  throw Error(ErrorKind::usage, fmt::format("unknown chat_template \"{}\"", name),
              nearest ? fmt::format("did you mean {}?", *nearest)
                      : fmt::format("known: {}, and files X.jinja", fmt::join(known, ", ")));
}

bool ChatFormat::uses_clock() const {
  const auto uses = [](const ChatTemplate& chat) {
    return chat.jinja != nullptr && chat.jinja->uses_clock();
  };
  return uses(general) || uses(tools);
}

std::map<std::string, int32_t> ChatFormat::mentioned_tokens(const TokenizerData& tokenizer) const {
  std::map<std::string, int32_t> mentioned = tokenizer.named_tokens;
  std::erase_if(mentioned, [&](const auto& token) {
    const auto mentions = [&](const ChatTemplate& chat) {
      return chat.jinja != nullptr && chat.jinja->mentions(token.first);
    };
    return !mentions(general) && !mentions(tools);
  });
  return mentioned;
}

ChatFormat chat_format(std::string_view name, const TokenizerData& tokenizer,
                       const jinja::DateTime& now) {
  require_chat_template(name);
  ChatFormat format;
  format.now = now;
  const auto add_token = [&](const std::string& variable, int32_t id) {
    if (id < 0 || id >= std::ssize(tokenizer.tokens)) return;
    const std::string& token = tokenizer.tokens[static_cast<size_t>(id)];
    format.special_tokens.emplace_back(variable, Value::text(token, jinja::kTemplate));
    if (id == tokenizer.eos) format.eos_token = token;
  };
  add_token("bos_token", tokenizer.bos);
  add_token("eos_token", tokenizer.eos);
  add_token("unk_token", tokenizer.unk);
  add_token("pad_token", tokenizer.pad);
  for (const auto& [variable, id] : tokenizer.named_tokens) add_token(variable, id);
  if (name == "plain") return format;
  if (name == "auto") {
    format.general = own_template(tokenizer.chat_template);
    format.tools = own_template(tokenizer.tool_template);
    // transformers refuses too; plain text would be neither of the two formats that the model
    // knows.
    if (format.general.is_none() && !format.tools.is_none()) {
      format.general.refusal = Error(
          ErrorKind::model, "the model has a chat template for tools alone", other_templates());
    }
  } else if (const auto source = builtin_template(name)) {
    format.general = parse_template(*source);
    const bool needs_end = format.general.jinja->mentions("eos_token");
    if (needs_end && format.eos_token.empty()) format.general.refusal = no_end_token();
  } else {
    format.general = template_file(std::string(name));
  }
  return format;
}

std::optional<std::chrono::year_month_day> parse_chat_date(std::string_view text) {
  if (text == "today") return std::nullopt;
  const std::vector<std::string> parts = split(text, '-');
  const auto number = [&](size_t part, int64_t low, int64_t high) -> int {
    const auto value = part < parts.size() ? parse_int(parts[part]) : std::nullopt;
    if (parts.size() != 3 || !value || *value < low || *value > high) {
      throw Error(ErrorKind::usage, fmt::format("chat_date \"{}\" is not a date", text),
                  "give today, or a date such as 2024-07-26");
    }
    return static_cast<int>(*value);
  };
  const int year = number(0, 1, 9999);
  const int month = number(1, 1, 12);
  const int day = number(2, 1, days_of_month(year, month));
  return std::chrono::year(year) / month / day;
}

jinja::DateTime chat_clock(const std::optional<std::chrono::year_month_day>& day) {
  if (day) {
    return {int{day->year()},
            static_cast<int>(unsigned{day->month()}),
            static_cast<int>(unsigned{day->day()}),
            0,
            0,
            0};
  }
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return {local.tm_year + 1900, local.tm_mon + 1, local.tm_mday, 0, 0, 0};
}

}  // namespace jackscrew
