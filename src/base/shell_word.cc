#include "base/shell_word.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace jackscrew {

namespace {

bool is_plain(char c) {
  const auto byte = static_cast<unsigned char>(c);
  // Bytes beyond ASCII are parts of letters to a shell.
  return std::isalnum(byte) != 0 || byte >= 0x80 ||
         std::string_view("_@%+=:,./-").find(c) != std::string_view::npos;
}

bool is_control(char c) {
  return static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
}

}  // namespace

std::string shell_word(std::string_view text) {
  if (!text.empty() && std::all_of(text.begin(), text.end(), is_plain)) return std::string(text);
  const bool escapes = std::any_of(text.begin(), text.end(), is_control);
  std::string out = escapes ? "$'" : "'";
  for (const char c : text) {
    if (is_control(c)) {
      out += c == '\n' ? "\\n" : fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else if (escapes && (c == '\'' || c == '\\')) {
      out += {'\\', c};
    } else {
      out += c == '\'' ? std::string("'\\''") : std::string(1, c);
    }
  }
  return out + '\'';
}

}  // namespace jackscrew
