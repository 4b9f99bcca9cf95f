// Options that are one of some words: the words, for the table that declares the option, and what
// each stands for, for whoever reads it. Written down together, neither can lack one of the other.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <string_view>

#include "base/error.h"

namespace jackscrew {

// How many words, separated by single spaces; 0 where two spaces, or one at an end, leave an empty
// word.
constexpr size_t count_words(std::string_view words) {
  size_t count = 0;
  for (size_t begin = 0; begin <= words.size(); ++count) {
    const size_t end = std::min(words.find(' ', begin), words.size());
    if (end == begin) return 0;
    begin = end + 1;
  }
  return count;
}

template <class Value, size_t kCount>
struct Choices {
  const char* words;                 // as OptionSpec::choices has them
  std::array<Value, kCount> values;  // of the words, in the same order

  // Does not compile unless there are as many words as values.
  consteval Choices(const char* words_of_values, const std::array<Value, kCount>& of_words)
      : words(words_of_values), values(of_words) {
    if (count_words(words_of_values) != kCount) throw "not as many words as values";
  }

  // Throws Error(usage) for a word that is none of them.
  Value operator[](std::string_view word) const {
    std::string_view rest = words;
    for (const Value& value : values) {
      const size_t end = std::min(rest.find(' '), rest.size());
      if (rest.substr(0, end) == word) return value;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
    throw Error(ErrorKind::usage, fmt::format("{} is not a choice", word),
                fmt::format("use one of: {}", words));
  }
};

}  // namespace jackscrew
