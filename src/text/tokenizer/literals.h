// Finds added and special tokens spelled out in a text.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace jackscrew {

struct Literal {
  std::string text;  // not empty
  int32_t id;
  bool special;
};

// Immutable and thread-safe.
class Literals {
 public:
  explicit Literals(std::vector<Literal> literals);

  // The longest literal at `position`, or null; special ones only with `parse_special`.
  const Literal* at(std::string_view text, size_t position, bool parse_special) const;
  const Literal* find(std::string_view text) const;
  struct Place {
    size_t begin;  // bytes
    const Literal* literal;
  };
  // The first literal in `text`, special or not; a null literal if there is none.
  Place next(std::string_view text) const;

  // Cuts `text` at its literals: calls `found` for each, and `between` for the non-empty parts
  // before, between and after them.
  template <typename Between, typename Found>
  void split(std::string_view text, bool parse_special, const Between& between,
             const Found& found) const {
    size_t done = 0;
    for (size_t i = 0; (i = candidate(text, i)) < text.size();) {
      const Literal* literal = at(text, i, parse_special);
      if (literal == nullptr) {
        ++i;
        continue;
      }
      if (i > done) between(text.substr(done, i - done));
      found(*literal);
      i += literal->text.size();
      done = i;
    }
    if (done < text.size()) between(text.substr(done));
  }

 private:
  // The first position from `position` on whose byte begins a literal; the end if there is none.
  size_t candidate(std::string_view text, size_t position) const {
    while (position < text.size() && !begins_[static_cast<uint8_t>(text[position])]) ++position;
    return position;
  }

  std::vector<Literal> literals_;  // longest first
  std::array<bool, 256> begins_{};
  // By the first two bytes: of one model hundreds or thousands begin with `<`.
  std::unordered_map<uint16_t, std::vector<size_t>> buckets_;
};

}  // namespace jackscrew
