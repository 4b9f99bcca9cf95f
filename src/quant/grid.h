// Grids: the codebooks of ggml's IQ formats. An index selects one of 256 to 2048 entries, vectors
// of eight or four numbers. iq1_grid.h and so on pack an entry into 16 bits, its first number in
// the lowest; the compiler unpacks them, so that a kernel fetches an entry with one load.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/row_kernel.h"

namespace jackscrew {

// An Entry is a uint64_t of eight signed bytes (two bits each when packed) or a uint32_t of four
// (three bits each), the first in the lowest byte.
template <class Entry, int64_t N>
struct Grid {
  Entry entries[N];
};

template <class Entry, int64_t N, int64_t kValues>
consteval Grid<Entry, N> unpacked(const uint16_t (&packed)[N], const int8_t (&values)[kValues]) {
  constexpr int kNumbers = sizeof(Entry);
  constexpr int kBits = kNumbers == 8 ? 2 : 3;
  Grid<Entry, N> grid{};
  for (int64_t entry = 0; entry < N; ++entry) {
    for (int i = 0; i < kNumbers; ++i) {
      const int code = packed[entry] >> kBits * i & ((1 << kBits) - 1);
      const auto byte = static_cast<Entry>(static_cast<uint8_t>(values[code]));
      grid.entries[entry] |= byte << 8 * i;
    }
  }
  return grid;
}

// Two entries of four numbers, one after the other.
JACKSCREW_ROW uint64_t joined(uint32_t first, uint32_t second) {
  return first | static_cast<uint64_t>(second) << 32;
}

// Expands the signs of four vectors of eight numbers to one byte per vector. The lowest 28 bits of
// `written` have seven signs of each; the eighth makes the number of minus signs even.
JACKSCREW_ROW uint32_t even_signs(uint32_t written) {
  const uint32_t bytes = (written & 0x7Fu) | (written & 0x3F80u) << 1 | (written & 0x1FC000u) << 2 |
                         (written & 0xFE00000u) << 3;
  // The lowest bit of each byte becomes the parity of the byte.
  uint32_t sum = bytes ^ bytes >> 4;
  sum ^= sum >> 2;
  sum ^= sum >> 1;
  return bytes | (sum & 0x01010101u) << 7;
}

// Returns the number, negated where bit i of `signs` is set.
JACKSCREW_ROW float with_sign(float number, uint32_t signs, int64_t i) {
  return bits_float(float_bits(number) ^ signs >> static_cast<uint32_t>(i) << 31);
}

}  // namespace jackscrew
