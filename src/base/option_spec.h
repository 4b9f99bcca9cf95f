// What one option is called and takes, as a row of a table declares it. The values that it has been
// given are in base/options.h.
#pragma once

#include <iterator>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew {

enum class OptionType { text, integer, number, boolean, bytes, list };  // bytes: with a unit

// One option, written as a row of a constant table. All strings outlive every OptionSet.
struct OptionSpec {
  const char* name;  // snake_case
  OptionType type;
  const char* default_text;  // as a user would write it; must be a valid value or empty (no value)
  const char* help;          // one line
  const char* aliases = "";  // other names, separated by spaces
  // Text and list: all the values allowed, separated by spaces (none: any value). Other types:
  // words allowed beside the values of the type, such as `auto`.
  const char* choices = "";
  // Inclusive limits of integers, numbers and bytes.
  double min = -std::numeric_limits<double>::infinity();
  double max = std::numeric_limits<double>::infinity();
  // Whether the result of a run depends on this option; false too if it does so only through what
  // is recorded elsewhere.
  bool affects_result = true;
  // Means nothing but to a run that trains. For options of a method's part that other commands
  // take, too.
  bool training_only = false;
  // The value, or each item, is the path of a file or directory; or a name in place of one, such as
  // `auto`.
  bool is_path = false;
};

// A name with `_` for every `-`, which are the same.
std::string canonical_name(std::string_view name);
// The words of a string separated by single spaces; none for an empty string.
std::vector<std::string> split_words(std::string_view text);
// Whether a name is one of such words; `-` and `_` are the same.
bool has_name(std::string_view names, std::string_view name);
// The row whose `names` have a name; nullptr where there is none.
template <class Rows>
auto find_row(const Rows& rows, std::string_view name) -> decltype(std::data(rows)) {
  for (const auto& row : rows) {
    if (has_name(row.names, name)) return &row;
  }
  return nullptr;
}

// Whether `text` is one of the words in the option's `choices`.
bool is_choice(const OptionSpec& spec, std::string_view text);
// Whether the option may have the value `text`; of a list, whether that may be one of its items.
bool is_valid_item(const OptionSpec& spec, std::string_view text);
// What the option expects, for messages and help: "a whole number of at least 1", "one of a, b".
std::string expected_value(const OptionSpec& spec);
// Throws Error(usage) for a value that is_valid_item() denies, or that other programs have: then
// `explanation`, otherwise null, is the hint. `origin` says who gave it.
[[noreturn]] void refuse_value(const OptionSpec& spec, std::string_view text,
                               std::string_view origin, const char* explanation);

}  // namespace jackscrew
