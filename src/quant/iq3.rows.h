// Grid entries (grid.h) of four elements each, with separate signs. A block of 256 elements begins
// with f16 d, then has:
// IQ3_XXS, 98 bytes: 64 bytes of indices; for each 32 elements a word with 4 x 7 signs and a 4-bit
//   scale above them. Value: d * (0.5 + scale) / 2 * number.
// IQ3_S, 110 bytes: 64 bytes of indices, 8 bytes of their ninth bits, 32 bytes of signs, 4 bytes of
//   4-bit scales of 32 elements each. Value: d * (1 + 2 scale) * number.
#pragma once

#include "quant/block_row.h"
#include "quant/grid.h"
#include "quant/iq3_grid.h"

namespace jackscrew {

JACKSCREW_ROW const uint32_t* iq3_xxs_entries() {
  static constexpr auto kGrid = unpacked<uint32_t>(kIq3XxsGrid, {4, 12, 20, 28, 36, 44, 52, 62});
  return kGrid.entries;
}
JACKSCREW_ROW const uint32_t* iq3_s_entries() {
  static constexpr auto kGrid = unpacked<uint32_t>(kIq3SGrid, {1, 3, 5, 7, 9, 11, 13, 15});
  return kGrid.entries;
}

// Stores four entries times their scale from element `to` on. The lowest 16 bits of `signs` are
// their signs, the lowest four of `ninth` the ninth bits of their indices.
template <class Team, class Store>
JACKSCREW_ROW void decode_iq3(const Team& team, float scale, const uint32_t* entries,
                              const uint8_t* index, int32_t ninth, uint32_t signs, int64_t to,
                              const Store& store) {
  const auto numbers = team.sixteen(
      joined(entries[index[0] | (ninth << 8 & 0x100)], entries[index[1] | (ninth << 7 & 0x100)]),
      joined(entries[index[2] | (ninth << 6 & 0x100)], entries[index[3] | (ninth << 5 & 0x100)]));
  team.each(16, [&](int64_t i) {
    store(to + i, with_sign(scale * static_cast<float>(numbers[i]), signs, i));
  });
}

struct IQ3_XXSBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 98;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint32_t* entries = iq3_xxs_entries();
    const float d = load_f16(team, block);
    for (int64_t group = 0; group < 8; ++group) {
      const uint8_t* index = block + 2 + 8 * group;
      const uint32_t word = load_u32(block + 66 + 4 * group);
      const uint32_t signs = even_signs(word);
      const float scale = d * (0.5f + static_cast<float>(static_cast<int32_t>(word >> 28))) * 0.5f;
      const int64_t to = 32 * group;
      decode_iq3(team, scale, entries, index, 0, signs, to, store);
      decode_iq3(team, scale, entries, index + 4, 0, signs >> 16, to + 16, store);
    }
  }
};

struct IQ3_SBlock {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 110;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint32_t* entries = iq3_s_entries();
    const float d = load_f16(team, block);
    for (int64_t group = 0; group < 8; ++group) {
      const uint8_t* index = block + 2 + 8 * group;
      const int32_t ninth = block[66 + group];
      const uint32_t signs = load_u32(block + 74 + 4 * group);
      const int32_t bits = block[106 + group / 2] >> group % 2 * 4 & 15;
      const float scale = d * static_cast<float>(1 + 2 * bits);
      const int64_t to = 32 * group;
      decode_iq3(team, scale, entries, index, ninth, signs, to, store);
      decode_iq3(team, scale, entries, index + 4, ninth >> 4, signs >> 16, to + 16, store);
    }
  }
};

using DecodeIQ3_XXS = DecodeBlocks<IQ3_XXSBlock>;
using DotIQ3_XXS = DotBlocks<IQ3_XXSBlock>;
using DecodeIQ3_S = DecodeBlocks<IQ3_SBlock>;
using DotIQ3_S = DotBlocks<IQ3_SBlock>;
JACKSCREW_ROW_KERNEL(DecodeIQ3_XXS)
JACKSCREW_ROW_KERNEL(DotIQ3_XXS)
JACKSCREW_ROW_KERNEL(DecodeIQ3_S)
JACKSCREW_ROW_KERNEL(DotIQ3_S)

}  // namespace jackscrew
