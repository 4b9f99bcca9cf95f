// Grids: of all vectors of eight or of four numbers those few hundred that an IQ format of ggml can
// say by an index. They are kept in 16 bits an entry (iq1_grid.h and so on, whose lowest bits are
// the first number) and unpacked by the compiler, so that a kernel has an entry by one load.
#pragma once

#include <cstdint>

#include "base/half.h"
#include "kernels/row_kernel.h"

namespace jackscrew {

// An Entry is uint64_t for eight signed bytes, two bits each when packed, or uint32_t for four, of
// three bits; the first is the lowest.
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

// Two entries of four, one behind the other.
JACKSCREW_ROW uint64_t joined(uint32_t first, uint32_t second) {
  return first | static_cast<uint64_t>(second) << 32;
}

// The signs of four times eight numbers, of which seven are written and the eighth is such that the
// number of minuses is even. Seven bits for each eight in the lowest 28; a byte for each comes out.
JACKSCREW_ROW uint32_t even_signs(uint32_t written) {
  const uint32_t bytes = (written & 0x7Fu) | (written & 0x3F80u) << 1 | (written & 0x1FC000u) << 2 |
                         (written & 0xFE00000u) << 3;
  // The lowest bit of each byte becomes the sum of all eight.
  uint32_t sum = bytes ^ bytes >> 4;
  sum ^= sum >> 2;
  sum ^= sum >> 1;
  return bytes | (sum & 0x01010101u) << 7;
}

// The number with its sign changed where bit i is set.
JACKSCREW_ROW float with_sign(float number, uint32_t signs, int64_t i) {
  return bits_float(float_bits(number) ^ signs >> static_cast<uint32_t>(i) << 31);
}

}  // namespace jackscrew
