// Strings that know where each of their bytes came from: from the template or from a value.
//
// A chat template writes special tokens, and a message may spell them out. Only the former may be
// read as special tokens, so every byte keeps its origin through concatenation, slices, strip,
// split, join, replace and changes of case. What is formatted anew (tojson, a list's repr, numbers)
// counts as content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew::jinja {

// Where a byte came from: a set of these bits.
using Origin = uint8_t;
inline constexpr Origin kContent = 0;
inline constexpr Origin kTemplate = 1;   // template text, string literals, trusted values
inline constexpr Origin kGenerated = 2;  // written within {% generation %}

class Text {
 public:
  struct Run {
    size_t end;  // one past its last byte; it begins where the one before ends
    Origin origin;
  };

  // No text grows beyond this: a template that doubles a string in a loop ends here.
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  Text() = default;
  Text(std::string bytes, Origin origin);

  // Nor has one more runs than this: a conversation has a few for each message.
  static constexpr size_t kMaxRuns = size_t{1} << 20;

  // Throws the Failure of a text beyond kMaxBytes.
  [[noreturn]] static void fail_too_long();

  // Both throw Failure beyond kMaxBytes or kMaxRuns.
  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  // Appends `count` bytes of `other` from `begin` on.
  void append(const Text& other, size_t begin, size_t count);
  Text substr(size_t begin, size_t count) const;
  void add_origin(Origin bits);

  std::string_view view() const { return bytes_; }
  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  Origin origin_at(size_t position) const;
  // In order, neighbours of different origin; they cover the text.
  const std::vector<Run>& runs() const { return runs_; }

 private:
  void add_run(size_t end, Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

// Characters are Unicode code points, as in Python; a byte that is not UTF-8 is one by itself.
size_t character_size(std::string_view text, size_t position);
size_t count_characters(std::string_view text);
// The code point at `position`; a byte that is not UTF-8 gives U+FFFD.
uint32_t code_point(std::string_view text, size_t position);

bool is_ascii(std::string_view text);
// Python's str.isspace for one code point.
bool is_space(uint32_t code_point);
// Whether a character is of a script that knows no upper and lower case; false also for some that
// have none.
bool is_caseless(uint32_t code_point);
// Where line ends of str.splitlines are: the bytes of the one at `position`, or 0.
size_t line_end_size(std::string_view text, size_t position);

// Bytes to the first character that is not whitespace, and to the end of the last such character.
size_t skip_spaces(std::string_view text, size_t position);
size_t trimmed_end(std::string_view text);

}  // namespace jackscrew::jinja
