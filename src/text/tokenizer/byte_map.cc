#include "text/tokenizer/byte_map.h"

#include <array>
#include <charconv>

#include "text/utf8.h"

namespace jackscrew {

namespace {

struct ByteMap {
  std::array<uint16_t, 256> character{};  // byte -> code point
  std::array<int16_t, 324> byte{};        // code point -> byte, -1: none
};

constexpr bool stands_for_itself(int byte) {
  return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

constexpr ByteMap make_byte_map() {
  ByteMap map;
  for (int16_t& byte : map.byte) byte = -1;
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const int character = stands_for_itself(byte) ? byte : next++;
    map.character[static_cast<size_t>(byte)] = static_cast<uint16_t>(character);
    map.byte[static_cast<size_t>(character)] = static_cast<int16_t>(byte);
  }
  return map;
}

constexpr ByteMap kByteMap = make_byte_map();

}  // namespace

std::string mapped_character(uint8_t byte) {
  const unsigned character = kByteMap.character[byte];
  if (character < 0x80) return std::string(1, static_cast<char>(character));
  return {static_cast<char>(0xC0 | (character >> 6)), static_cast<char>(0x80 | (character & 0x3F))};
}

std::string map_bytes(std::string_view bytes) {
  std::string token;
  for (const char c : bytes) token += mapped_character(static_cast<uint8_t>(c));
  return token;
}

std::optional<std::string> unmap_bytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    const Utf8Step step = utf8_step(token, i);
    if (step.status != Utf8Status::valid || step.length > 2) return std::nullopt;
    const size_t character = utf8_character(token, i);
    if (character >= kByteMap.byte.size() || kByteMap.byte[character] < 0) return std::nullopt;
    bytes += static_cast<char>(kByteMap.byte[character]);
    i += step.length;
  }
  return bytes;
}

std::optional<uint8_t> byte_of_token(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
  uint8_t byte = 0;
  const char* end = token.data() + 5;
  const auto [stop, error] = std::from_chars(token.data() + 3, end, byte, 16);
  return error == std::errc{} && stop == end ? std::optional(byte) : std::nullopt;
}

}  // namespace jackscrew
