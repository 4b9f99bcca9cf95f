// Grid entries (grid.h) of eight elements each, with separate signs. A block of 256 elements begins
// with f16 d, then has:
// IQ2_XXS, 66 bytes: for each 32 elements 4 bytes of indices and a word with 4 x 7 signs and a
//   4-bit scale above them.
// IQ2_XS, 74 bytes: 32 words of 16 bits, each an index (9 bits) and 7 signs; 8 bytes of 4-bit
//   scales of 16 elements each.
// IQ2_S, 82 bytes: 32 bytes of indices, 32 bytes of signs, 8 bytes of the indices' high two bits, 8
//   bytes of 4-bit scales of 16 elements each.
// Value: d * (0.5 + scale) / 4 * number.
#pragma once

#include "quant/block_row.h"
#include "quant/grid.h"
#include "quant/iq2_grid.h"

namespace jackscrew {

JACKSCREW_ROW const uint64_t* iq2_xxs_entries() {
  static constexpr auto kGrid = unpacked<uint64_t>(kIq2XxsGrid, {8, 25, 43});
  return kGrid.entries;
}
JACKSCREW_ROW const uint64_t* iq2_xs_entries() {
  static constexpr auto kGrid = unpacked<uint64_t>(kIq2XsGrid, {8, 25, 43});
  return kGrid.entries;
}
JACKSCREW_ROW const uint64_t* iq2_s_entries() {
  static constexpr auto kGrid = unpacked<uint64_t>(kIq2SGrid, {8, 25, 43});
  return kGrid.entries;
}

JACKSCREW_ROW float iq2_scale(float d, uint32_t bits) {
  return d * (0.5f + static_cast<float>(static_cast<int32_t>(bits & 15))) * 0.25f;
}

// Stores two entries times their scale from element `to` on. The lowest 16 bits of `signs` are
// their signs.
template <class Team, class Store>
JACKSCREW_ROW void decode_iq2(const Team& team, float scale, uint64_t first, uint64_t second,
                              uint32_t signs, int64_t to, const Store& store) {
  const auto numbers = team.sixteen(first, second);
  team.each(16, [&](int64_t i) {
    store(to + i, with_sign(scale * static_cast<float>(numbers[i]), signs, i));
  });
}

struct IQ2_XXSBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 66;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint64_t* entries = iq2_xxs_entries();
    const float d = load_f16(team, block);
    for (int64_t group = 0; group < 8; ++group) {
      const uint8_t* index = block + 2 + 8 * group;
      const uint32_t word = load_u32(index + 4);
      const uint32_t signs = even_signs(word);
      const float scale = iq2_scale(d, word >> 28);
      const int64_t to = 32 * group;
      decode_iq2(team, scale, entries[index[0]], entries[index[1]], signs, to, store);
      decode_iq2(team, scale, entries[index[2]], entries[index[3]], signs >> 16, to + 16, store);
    }
  }
};

struct IQ2_XSBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 74;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint64_t* entries = iq2_xs_entries();
    const float d = load_f16(team, block);
    for (int64_t group = 0; group < 8; ++group) {
      const uint8_t* words = block + 2 + 8 * group;
      const auto entry = [&](int64_t i) { return entries[load_u16(words + 2 * i) & 511]; };
      const auto seven = [&](int64_t i) { return load_u16(words + 2 * i) >> 9; };
      const uint32_t signs = even_signs(seven(0) | seven(1) << 7 | seven(2) << 14 | seven(3) << 21);
      const uint32_t scales = block[66 + group];
      const int64_t to = 32 * group;
      decode_iq2(team, iq2_scale(d, scales), entry(0), entry(1), signs, to, store);
      decode_iq2(team, iq2_scale(d, scales >> 4), entry(2), entry(3), signs >> 16, to + 16, store);
    }
  }
};

struct IQ2_SBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 82;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint64_t* entries = iq2_s_entries();
    const float d = load_f16(team, block);
    for (int64_t part = 0; part < 16; ++part) {
      const int32_t high = block[66 + part / 2] >> part % 2 * 4;
      const int32_t first = block[2 + 2 * part] | (high << 8 & 0x300);
      const int32_t second = block[3 + 2 * part] | (high << 6 & 0x300);
      const float scale = iq2_scale(d, uint32_t{block[74 + part / 2]} >> part % 2 * 4);
      decode_iq2(team, scale, entries[first], entries[second], load_u16(block + 34 + 2 * part),
                 16 * part, store);
    }
  }
};

using DecodeIQ2_XXS = DecodeBlocks<IQ2_XXSBlock>;
using DotIQ2_XXS = DotBlocks<IQ2_XXSBlock>;
using DecodeIQ2_XS = DecodeBlocks<IQ2_XSBlock>;
using DotIQ2_XS = DotBlocks<IQ2_XSBlock>;
using DecodeIQ2_S = DecodeBlocks<IQ2_SBlock>;
using DotIQ2_S = DotBlocks<IQ2_SBlock>;
JACKSCREW_ROW_KERNEL(DecodeIQ2_XXS)
JACKSCREW_ROW_KERNEL(DotIQ2_XXS)
JACKSCREW_ROW_KERNEL(DecodeIQ2_XS)
JACKSCREW_ROW_KERNEL(DotIQ2_XS)
JACKSCREW_ROW_KERNEL(DecodeIQ2_S)
JACKSCREW_ROW_KERNEL(DotIQ2_S)

}  // namespace jackscrew
