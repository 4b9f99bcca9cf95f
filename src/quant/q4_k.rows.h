// Q4_K: 256 elements in 144 bytes: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima of 8 groups
// of 32, 128 bytes of nibbles q. Value: d * scale * q - dmin * minimum.
#pragma once

#include "quant/block_row.h"
#include "quant/k_scales.h"

namespace jackscrew {

struct Q4_KBlock : NibblesDot<DotLayout::groups, DotScales::groups> {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 144;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const float dmin = load_f16(team, block + 2);
    const uint8_t* packed = block + 4;
    const uint8_t* quants = block + 16;
    // Bytes [32 p, 32 p + 32) hold group 2p in their low nibbles and group 2p + 1 in the high ones.
    for (int64_t pair = 0; pair < 4; ++pair) {
      const float low_scale = d * k_scale(packed, 2 * pair);
      const float low_min = dmin * k_minimum(packed, 2 * pair);
      const float high_scale = d * k_scale(packed, 2 * pair + 1);
      const float high_min = dmin * k_minimum(packed, 2 * pair + 1);
      for (int64_t half = 0; half < 32; half += 16) {
        const auto bytes = team.sixteen(quants + pair * 32 + half);
        const int64_t to = pair * 64 + half;
        team.each(16, [&](int64_t i) {
          store(to + i, low_scale * static_cast<float>(bytes[i] & 15) - low_min);
          store(to + 32 + i, high_scale * static_cast<float>(bytes[i] >> 4) - high_min);
        });
      }
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers& numbers, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    static_assert(kBlocks == 1);
    const auto d_and_dmin = Dot::template halves<2, 1>(blocks, 0);
    const KGroups groups = k_groups(blocks + 4);
    const auto scales = Dot::bytes(groups.scales).times(d_and_dmin.first()).times(x.scales);
    dot.add_offsets(Dot::bytes(groups.minima).times(-d_and_dmin.second()), x.sums);
    Dot::template each<8 / Dot::kLanes>([&](int v) {
      dot.add(numbers, Dot::codes(blocks + 16 + 16 * Dot::kLanes * v),
              scales.pairs_of_lanes(Dot::kLanes * v, 2),
              scales.pairs_of_lanes(Dot::kLanes * v + 1, 2), x.numbers + Dot::kVector * v);
    });
  }
};
using DecodeQ4_K = DecodeBlocks<Q4_KBlock>;
using DotQ4_K = DotBlocks<Q4_KBlock>;
JACKSCREW_ROW_KERNEL(DecodeQ4_K)
JACKSCREW_ROW_KERNEL(DotQ4_K)

}  // namespace jackscrew
