// Strict UTF-8 (no overlong forms, no surrogates, nothing above U+10FFFF), one character at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace jackscrew {

enum class Utf8Status {
  valid,
  invalid,    // cannot begin or continue a character
  incomplete  // the text ends within what may still be a character
};

struct Utf8Step {
  Utf8Status status;
  size_t
      length;  // bytes: of the character, or of the longest prefix that cannot be completed (>= 1)
};

// Classifies the bytes at `position` (< text.size()).
inline Utf8Step utf8_step(std::string_view text, size_t position) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[position + i]); };
  const size_t left = text.size() - position;
  const uint8_t lead = byte(0);
  if (lead < 0x80) return {Utf8Status::valid, 1};
  if (lead < 0xC2 || lead > 0xF4) return {Utf8Status::invalid, 1};
  const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  // The second byte reveals overlong forms, surrogates and values above U+10FFFF.
  const uint8_t low = lead == 0xE0 ? 0xA0 : lead == 0xF0 ? 0x90 : 0x80;
  const uint8_t high = lead == 0xED ? 0x9F : lead == 0xF4 ? 0x8F : 0xBF;
  for (size_t i = 1; i < length; ++i) {
    if (i == left) return {Utf8Status::incomplete, left};
    const uint8_t next = byte(i);
    if (next < (i == 1 ? low : 0x80) || next > (i == 1 ? high : 0xBF)) {
      return {Utf8Status::invalid, i};
    }
  }
  return {Utf8Status::valid, length};
}

// The length in bytes of the longest valid prefix of `text`.
inline size_t utf8_valid_prefix(std::string_view text) {
  size_t position = 0;
  while (position < text.size()) {
    if (static_cast<uint8_t>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const Utf8Step step = utf8_step(text, position);
    if (step.status != Utf8Status::valid) break;
    position += step.length;
  }
  return position;
}

// The code point of the valid character at `position`.
inline uint32_t utf8_character(std::string_view text, size_t position) {
  const auto bits = [&](size_t i, uint32_t mask) {
    return static_cast<uint32_t>(static_cast<uint8_t>(text[position + i])) & mask;
  };
  const uint32_t lead = bits(0, 0xFF);
  if (lead < 0x80) return lead;
  if (lead < 0xE0) return (bits(0, 0x1F) << 6) | bits(1, 0x3F);
  if (lead < 0xF0) return (bits(0, 0x0F) << 12) | (bits(1, 0x3F) << 6) | bits(2, 0x3F);
  return (bits(0, 0x07) << 18) | (bits(1, 0x3F) << 12) | (bits(2, 0x3F) << 6) | bits(3, 0x3F);
}

// The length in bytes of the valid character that begins with `lead`.
inline size_t utf8_length(char lead) {
  const auto byte = static_cast<uint8_t>(lead);
  return byte < 0x80 ? 1 : byte < 0xE0 ? 2 : byte < 0xF0 ? 3 : 4;
}

inline void append_utf8(std::string& out, uint32_t point) {
  const auto put = [&](uint32_t byte) { out += static_cast<char>(byte); };
  if (point < 0x80) {
    put(point);
  } else if (point < 0x800) {
    put(0xC0 | (point >> 6));
    put(0x80 | (point & 0x3F));
  } else if (point < 0x10000) {
    put(0xE0 | (point >> 12));
    put(0x80 | ((point >> 6) & 0x3F));
    put(0x80 | (point & 0x3F));
  } else {
    put(0xF0 | (point >> 18));
    put(0x80 | ((point >> 12) & 0x3F));
    put(0x80 | ((point >> 6) & 0x3F));
    put(0x80 | (point & 0x3F));
  }
}

}  // namespace jackscrew
