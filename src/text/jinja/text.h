// Strings that know the origin of each byte: the template or a value.
//
// A chat template writes special tokens, and a message may spell them out. Only the former may be
// read as special tokens, so every byte keeps its origin through concatenation, slices, strip,
// split, join, replace and changes of case. Text that is formatted anew (tojson, a list's repr,
// numbers) counts as content.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace jackscrew::jinja {

// The origin of a byte: a set of these bits.
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

  // The largest text: it stops a template that doubles a string in a loop.
  static constexpr size_t kMaxBytes = size_t{64} << 20;

  Text() = default;
  Text(std::string bytes, Origin origin);

  // The most runs of a text: a conversation has a few per message.
  static constexpr size_t kMaxRuns = size_t{1} << 20;

  // Throws the Failure for a text beyond kMaxBytes.
  [[noreturn]] static void fail_too_long();

  // These throw Failure beyond kMaxBytes or kMaxRuns.
  void append(std::string_view bytes, Origin origin);
  void append(const Text& other) { append(other, 0, other.size()); }
  // Appends `count` bytes of `other` from `begin` on.
  void append(const Text& other, size_t begin, size_t count);
  Text substr(size_t begin, size_t count) const;
  void add_origin(Origin bits);
  // A text of other bytes, as many as this one has, each with the origin of the byte in its place.
  Text with_bytes(std::string bytes) const;

  std::string_view view() const { return bytes_; }
  const std::string& bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  bool empty() const { return bytes_.empty(); }
  Origin origin_at(size_t position) const;
  // In order, covering the text; adjacent runs differ in origin.
  const std::vector<Run>& runs() const { return runs_; }

 private:
  void add_run(size_t end, Origin origin);

  std::string bytes_;
  std::vector<Run> runs_;
};

// Where `part` is first found in `text` from `from` on; npos: nowhere. Takes time in proportion to
// both lengths, where std::string_view's may take their product.
size_t find_text(std::string_view text, std::string_view part, size_t from = 0);
// The bytes from the last to the first: to find the last place of a part.
std::string backwards(std::string_view text);

// Characters are Unicode code points, as in Python; an invalid byte counts as one character.
size_t character_size(std::string_view text, size_t position);
size_t count_characters(std::string_view text);
// The code point at `position`; U+FFFD for an invalid byte.
uint32_t code_point(std::string_view text, size_t position);

bool is_ascii(std::string_view text);
// Python's str.isspace for one code point.
bool is_space(uint32_t code_point);
// Whether a character belongs to a script without upper and lower case; may be false for some that
// have none.
bool is_caseless(uint32_t code_point);
// The length in bytes of the line end of str.splitlines at `position`, or 0.
size_t line_end_size(std::string_view text, size_t position);

// The position of the first character from `position` on that is not whitespace; and the end of the
// last such character.
size_t skip_spaces(std::string_view text, size_t position);
size_t trimmed_end(std::string_view text);

}  // namespace jackscrew::jinja
