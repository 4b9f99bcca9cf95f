// Grid entries (grid.h) of eight elements each, -1, 0 or 1, shifted by 1/8 up or down. 256
// elements:
// IQ1_S, 50 bytes: f16 d; 32 bytes of indices; for each 32 elements a word of 16 bits: the high
//   three bits of 4 indices, 3 bits of scale, and the direction of the shift (1: down).
// IQ1_M, 56 bytes: 32 bytes of indices; for each index a nibble with its high three bits and the
//   direction of the shift; 4 words of 16 bits, each the 3-bit scales of 4 times 16 elements and
//   above them four bits of d, the lowest in the first.
// Value: d * (2 scale + 1) * (number +- 1/8).
#pragma once

#include "quant/block_row.h"
#include "quant/grid.h"
#include "quant/iq1_grid.h"

namespace jackscrew {

// Entries of bytes 8 * number + 10, from which the shift down subtracts without a borrow.
JACKSCREW_ROW const uint64_t* iq1_entries() {
  static constexpr auto kGrid = unpacked<uint64_t>(kIq1SGrid, {2, 10, 18});
  return kGrid.entries;
}

// Shifts an entry by 1/8 up, or down where `down` is 1: its bytes become 8 * (number +- 1/8) + 9.
// Without a branch, which no processor could predict.
JACKSCREW_ROW uint64_t iq1_moved(uint64_t entry, uint32_t down) {
  return entry - (0x0202020202020202u & -static_cast<uint64_t>(down));
}

// An eighth of the scale, as entries are eight times their numbers.
JACKSCREW_ROW float iq1_scale(float d, uint32_t bits) {
  return d * 0.125f * static_cast<float>(2 * static_cast<int32_t>(bits & 7) + 1);
}

// Stores two shifted entries times their scale from element `to` on.
template <class Team, class Store>
JACKSCREW_ROW void decode_iq1(const Team& team, float scale, uint64_t first, uint64_t second,
                              int64_t to, const Store& store) {
  const auto numbers = team.sixteen(first, second);
  team.each(16, [&](int64_t i) { store(to + i, scale * static_cast<float>(numbers[i] - 9)); });
}

struct IQ1_SBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 50;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint64_t* entries = iq1_entries();
    const float d = load_f16(team, block);
    for (int64_t group = 0; group < 8; ++group) {
      const uint8_t* index = block + 2 + 4 * group;
      const uint32_t word = load_u16(block + 34 + 2 * group);
      const float scale = iq1_scale(d, word >> 12);
      const auto entry = [&](int64_t i, uint32_t high) {
        return iq1_moved(entries[index[i] | (high & 7) << 8], word >> 15);
      };
      const int64_t to = 32 * group;
      decode_iq1(team, scale, entry(0, word), entry(1, word >> 3), to, store);
      decode_iq1(team, scale, entry(2, word >> 6), entry(3, word >> 9), to + 16, store);
    }
  }
};

struct IQ1_MBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 56;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint64_t* entries = iq1_entries();
    const uint8_t* scales = block + 48;
    const uint32_t d_bits = load_u16(scales) >> 12 | (load_u16(scales + 2) >> 8 & 0xF0) |
                            (load_u16(scales + 4) >> 4 & 0xF00) | (load_u16(scales + 6) & 0xF000);
    const float d = team.half({static_cast<uint16_t>(d_bits)});
    for (int64_t part = 0; part < 16; ++part) {
      const float scale = iq1_scale(d, load_u16(scales + part / 4 * 2) >> part % 4 * 3);
      const auto entry = [&](int64_t i, uint32_t nibble) {
        return iq1_moved(entries[block[2 * part + i] | (nibble & 7) << 8], nibble >> 3 & 1);
      };
      const uint32_t nibbles = block[32 + part];
      decode_iq1(team, scale, entry(0, nibbles), entry(1, nibbles >> 4), 16 * part, store);
    }
  }
};

using DecodeIQ1_S = DecodeBlocks<IQ1_SBlock>;
using DotIQ1_S = DotBlocks<IQ1_SBlock>;
using DecodeIQ1_M = DecodeBlocks<IQ1_MBlock>;
using DotIQ1_M = DotBlocks<IQ1_MBlock>;
JACKSCREW_ROW_KERNEL(DecodeIQ1_S)
JACKSCREW_ROW_KERNEL(DotIQ1_S)
JACKSCREW_ROW_KERNEL(DecodeIQ1_M)
JACKSCREW_ROW_KERNEL(DotIQ1_M)

}  // namespace jackscrew
