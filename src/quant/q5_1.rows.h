// Q5_1: 32 elements in 24 bytes: f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles.
// Value: d * q + m.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// Byte i of the nibbles holds elements i (low nibble) and i + 16; bit i of the fifth bits belongs
// to element i.
struct Q5_1Block : BytesDot<DotScales::alternate> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 24;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const float m = load_f16(team, block + 2);
    const uint32_t fifths = load_u32(block + 4);
    const auto quants = team.sixteen(block + 8);
    team.each(16, [&](int64_t i) {
      const int32_t low = (quants[i] & 15) | fifth_bit(fifths, i);
      const int32_t high = (quants[i] >> 4) | fifth_bit(fifths, i + 16);
      store(i, d * static_cast<float>(low) + m);
      store(i + 16, d * static_cast<float>(high) + m);
    });
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    const auto d_and_m = Dot::template halves<2, kBlocks>(blocks, kBytes);
    dot.add_offsets(d_and_m, x.sums);
    const auto scales = d_and_m.times(x.scales);
    Dot::template each<kBlocks>([&](int b) {
      const uint8_t* block = blocks + b * kBytes;
      const auto q =
          Dot::either(Dot::load_halves(block + 8), Dot::spread_bits(load_u32(block + 4), 16));
      dot.add_bytes(q, scales, 2 * b, x.numbers + b * kElements);
    });
  }
};
using DecodeQ5_1 = DecodeBlocks<Q5_1Block>;
using DotQ5_1 = DotBlocks<Q5_1Block>;
JACKSCREW_ROW_KERNEL(DecodeQ5_1)
JACKSCREW_ROW_KERNEL(DotQ5_1)

}  // namespace jackscrew
