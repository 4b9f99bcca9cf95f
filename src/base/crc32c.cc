#include "base/crc32c.h"

#include <array>

namespace jackscrew {

namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[byte] = crc;
  }
  return table;
}

constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

void Crc32c::add(std::span<const uint8_t> bytes) {
  uint32_t state = state_;
  for (const uint8_t byte : bytes) state = (state >> 8) ^ kTable[(state ^ byte) & 0xFFu];
  state_ = state;
}

void Crc32c::add(std::string_view text) {
  add({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
}

uint32_t crc32c(std::span<const uint8_t> bytes) {
  Crc32c crc;
  crc.add(bytes);
  return crc.value();
}

uint32_t crc32c(std::string_view text) {
  Crc32c crc;
  crc.add(text);
  return crc.value();
}

}  // namespace jackscrew
