#include "base/list_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <optional>
#include <utility>

#include "base/shell_word.h"

namespace jackscrew {

namespace {

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Follows the braces of a list: what they hold, as in the "{1,2}" of a pattern, is of one item.
class Braces {
 public:
  explicit Braces(std::string_view text) : text_(text) {}
  // Whether a comma at `i` would separate; called for each place, in order.
  bool separates_at(size_t i) {
    if (text_[i] == '{' && text_.find('}', i) != std::string_view::npos) ++open_;
    if (text_[i] == '}' && open_ > 0) --open_;
    return text_[i] == ',' && open_ == 0;
  }

 private:
  std::string_view text_;
  size_t open_ = 0;
};

// Whether the text is a list in brackets. Brackets of their own, as "[qk]_proj|.*[v]" has them, are
// of an item.
bool is_bracketed(std::string_view text) {
  if (!text.starts_with('[')) return false;
  size_t open = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '[') ++open;
    if (text[i] == ']' && --open == 0) return i + 1 == text.size();
  }
  return false;
}

// The items of a list's text if all of them are in quotes, as JSON and Python write lists. In them
// a backslash stands for itself, but before a quote or another.
std::optional<std::vector<std::string>> quoted_items(std::string_view text) {
  std::vector<std::string> items;
  for (;;) {
    if (!text.starts_with('"') && !text.starts_with('\'')) return std::nullopt;
    const char quote = text.front();
    std::string item;
    size_t i = 1;
    for (; i < text.size() && text[i] != quote; ++i) {
      const bool escapes = text[i] == '\\' && i + 1 < text.size();
      if (escapes && (text[i + 1] == '\\' || text[i + 1] == quote)) ++i;
      item += text[i];
    }
    if (i == text.size()) return std::nullopt;
    items.push_back(std::move(item));
    text = trim(text.substr(i + 1));
    if (text.empty()) return items;
    if (text.front() != ',') return std::nullopt;
    text = trim(text.substr(1));
  }
}

}  // namespace

std::vector<std::string> list_items(std::string_view text) {
  text = trim(text);
  if (is_bracketed(text)) {
    text = trim(text.substr(1, text.size() - 2));
    if (auto quoted = quoted_items(text)) return std::move(*quoted);
  }
  std::vector<std::string> items;
  if (text.empty()) return items;
  std::string item;
  Braces braces(text);
  for (size_t i = 0; i < text.size(); ++i) {
    if (text.substr(i).starts_with("\\,")) {
      item += text[++i];
    } else if (braces.separates_at(i)) {
      items.emplace_back(trim(std::exchange(item, {})));
    } else {
      item += text[i];
    }
  }
  items.emplace_back(trim(item));
  return items;
}

std::string list_item(std::string_view text) {
  std::string out;
  Braces braces(text);
  for (size_t i = 0; i < text.size(); ++i) {
    if (braces.separates_at(i)) out += '\\';
    out += text[i];
  }
  return out;
}

std::string list_text(std::span<const std::string> items) {
  std::string out;
  for (const std::string& item : items) {
    if (!out.empty()) out += ',';
    out += list_item(item);
  }
  return out;
}

std::string hint_of_comma(std::span<const std::string> items) {
  if (items.size() < 2) return {};
  // Spaces beside the commas are gone.
  for (const char* comma : {",", ", "}) {
    const std::string path = fmt::format("{}", fmt::join(items, comma));
    std::error_code unreachable;
    if (!std::filesystem::exists(path, unreachable)) continue;
    return fmt::format("a comma of a name is written \\,: {}", shell_word(list_item(path)));
  }
  return {};
}

}  // namespace jackscrew
