// Q8_0: 32 elements in 34 bytes: f16 d, 32 signed bytes q. Value: d * q.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

struct Q8_0Block : BytesDot<DotScales::groups> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 34;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    for (int64_t half = 0; half < kElements; half += 16) {
      const auto quants = team.sixteen(reinterpret_cast<const int8_t*>(block + 2 + half));
      team.each(16, [&](int64_t i) { store(half + i, d * static_cast<float>(quants[i])); });
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    const auto scales = Dot::template halves<1, kBlocks>(blocks, kBytes).times(x.scales);
    Dot::template each<kBlocks>([&](int b) {
      dot.add_bytes(Dot::load_bytes(blocks + b * kBytes + 2), scales, b, x.numbers + b * kElements);
    });
  }
};
using DecodeQ8_0 = DecodeBlocks<Q8_0Block>;
using DotQ8_0 = DotBlocks<Q8_0Block>;
JACKSCREW_ROW_KERNEL(DecodeQ8_0)
JACKSCREW_ROW_KERNEL(DotQ8_0)

}  // namespace jackscrew
