// Q4_0: 32 elements in 18 bytes: f16 d, 16 bytes of nibbles q. Value: d * (q - 8).
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// Byte i holds elements i (low nibble) and i + 16.
struct Q4_0Block : NibblesDot<DotLayout::halves, DotScales::groups> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 18;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const auto quants = team.sixteen(block + 2);
    team.each(16, [&](int64_t i) {
      store(i, d * static_cast<float>((quants[i] & 15) - 8));
      store(i + 16, d * static_cast<float>((quants[i] >> 4) - 8));
    });
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers& numbers, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    const auto d = Dot::template halves<1, kBlocks>(blocks, kBytes);
    dot.add_offsets(d.times(-8.0f), x.sums);
    const auto scales = d.times(x.scales);
    each_vector<kBlocks, Dot>([&]<int kCount>(int first) {
      dot.add(numbers, Dot::template codes<kCount>(blocks + first * kBytes + 2, kBytes),
              scales.lanes(first, 1), x.numbers + first * kElements);
    });
  }
};
using DecodeQ4_0 = DecodeBlocks<Q4_0Block>;
using DotQ4_0 = DotBlocks<Q4_0Block>;
JACKSCREW_ROW_KERNEL(DecodeQ4_0)
JACKSCREW_ROW_KERNEL(DotQ4_0)

}  // namespace jackscrew
