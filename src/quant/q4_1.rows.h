// Q4_1: 32 elements in 20 bytes: f16 d, f16 m, 16 bytes of nibbles q. Value: d * q + m.
#pragma once

#include "quant/decode_row.h"

namespace jackscrew {

// Byte i holds elements i (low nibble) and i + 16.
struct Q4_1Block {
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

  static constexpr int64_t kSumStride = 2;  // as m and d take turns
  template <int kBlocks, class Dot>
  JACKSCREW_ROW static void dot(Dot& dot, const uint8_t* blocks, const float* x,
                                const float* sums) {
    const auto d_and_m = Dot::template halves<2, kBlocks>(blocks, kBytes);
    dot.add_offsets(d_and_m, sums);
    Dot::template each<kBlocks>([&](int b) {
      dot.add_halves(typename Dot::Whole{}, blocks + b * kBytes + 4, d_and_m.all(2 * b),
                     x + b * kElements);
    });
  }
};
using DecodeQ4_1 = DecodeBlocks<Q4_1Block>;
using DotQ4_1 = DotBlocks<Q4_1Block>;
JACKSCREW_ROW_KERNEL(DecodeQ4_1)
JACKSCREW_ROW_KERNEL(DotQ4_1)

}  // namespace jackscrew
