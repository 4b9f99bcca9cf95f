// Q4_1: 32 elements in 20 bytes: f16 d, f16 m, 16 bytes of nibbles q. Value: d * q + m.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// Byte i holds elements i (low nibble) and i + 16.
struct Q4_1Block : NibblesDot<DotLayout::halves, DotScales::alternate> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 20;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const float m = load_f16(team, block + 2);
    const auto quants = team.sixteen(block + 4);
    team.each(16, [&](int64_t i) {
      store(i, d * static_cast<float>(quants[i] & 15) + m);
      store(i + 16, d * static_cast<float>(quants[i] >> 4) + m);
    });
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers& numbers, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    const auto d_and_m = Dot::template halves<2, kBlocks>(blocks, kBytes);
    dot.add_offsets(d_and_m, x.sums);
    const auto scales = d_and_m.times(x.scales);
    each_vector<kBlocks, Dot>([&]<int kCount>(int first) {
      dot.add(numbers, Dot::template codes<kCount>(blocks + first * kBytes + 4, kBytes),
              scales.lanes(2 * first, 2), x.numbers + first * kElements);
    });
  }
};
using DecodeQ4_1 = DecodeBlocks<Q4_1Block>;
using DotQ4_1 = DotBlocks<Q4_1Block>;
JACKSCREW_ROW_KERNEL(DecodeQ4_1)
JACKSCREW_ROW_KERNEL(DotQ4_1)

}  // namespace jackscrew
