// Q5_K: 256 elements in 176 bytes: f16 d, f16 dmin, 12 bytes of 6-bit scales and minima of 8 groups
// of 32 (k_scales.h), 32 bytes of fifth bits, 128 bytes of nibbles. Value: d * scale * q - dmin *
// minimum.
#pragma once

#include "quant/block_row.h"
#include "quant/k_scales.h"

namespace jackscrew {

struct Q5_KBlock : BytesDot<DotScales::groups> {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 176;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const float dmin = load_f16(team, block + 2);
    const uint8_t* packed = block + 4;
    // Bytes [32 p, 32 p + 32) hold group 2p in their low nibbles and group 2p + 1 in the high ones;
    // bit g of byte i of the fifth bits is that of element i of group g.
    for (int64_t pair = 0; pair < 4; ++pair) {
      const float low_scale = d * k_scale(packed, 2 * pair);
      const float low_min = dmin * k_minimum(packed, 2 * pair);
      const float high_scale = d * k_scale(packed, 2 * pair + 1);
      const float high_min = dmin * k_minimum(packed, 2 * pair + 1);
      for (int64_t half = 0; half < 32; half += 16) {
        const auto fifths = team.sixteen(block + 16 + half);
        const auto bytes = team.sixteen(block + 48 + pair * 32 + half);
        const int64_t to = pair * 64 + half;
        team.each(16, [&](int64_t i) {
          const int32_t fifth = fifths[i] >> 2 * pair;
          const int32_t low = (bytes[i] & 15) | (fifth << 4 & 16);
          const int32_t high = bytes[i] >> 4 | (fifth << 3 & 16);
          store(to + i, low_scale * static_cast<float>(low) - low_min);
          store(to + 32 + i, high_scale * static_cast<float>(high) - high_min);
        });
      }
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* block,
                                const typename Dot::Input& x) {
    static_assert(kBlocks == 1);
    const auto d_and_dmin = Dot::template halves<2, 1>(block, 0);
    const KGroups groups = k_groups(block + 4);
    const auto scales = Dot::bytes(groups.scales).times(d_and_dmin.first()).times(x.scales);
    dot.add_offsets(Dot::bytes(groups.minima).times(-d_and_dmin.second()), x.sums);
    const auto fifths = Dot::load_bytes(block + 16);
    Dot::template each<4>([&](int pair) {
      const auto nibbles = Dot::load_bytes(block + 48 + 32 * pair);
      Dot::template each<2>([&](int high) {
        const int group = 2 * pair + high;
        const auto q =
            Dot::either(Dot::bits(nibbles, 4 * high, 15), Dot::bits(fifths, group - 4, 16));
        dot.add_bytes(q, scales, group, x.numbers + 32 * group);
      });
    });
  }
};
using DecodeQ5_K = DecodeBlocks<Q5_KBlock>;
using DotQ5_K = DotBlocks<Q5_KBlock>;
JACKSCREW_ROW_KERNEL(DecodeQ5_K)
JACKSCREW_ROW_KERNEL(DotQ5_K)

}  // namespace jackscrew
