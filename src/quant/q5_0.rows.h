// Q5_0: 32 elements in 22 bytes: f16 d, 32 fifth bits, 16 bytes of nibbles. Value: d * (q - 16).
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// Byte i of the nibbles holds elements i (low nibble) and i + 16; bit i of the fifth bits belongs
// to element i.
struct Q5_0Block : BytesDot<DotScales::groups> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 22;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const uint32_t fifths = load_u32(block + 2);
    const auto quants = team.sixteen(block + 6);
    team.each(16, [&](int64_t i) {
      const int32_t low = (quants[i] & 15) | fifth_bit(fifths, i);
      const int32_t high = (quants[i] >> 4) | fifth_bit(fifths, i + 16);
      store(i, d * static_cast<float>(low - 16));
      store(i + 16, d * static_cast<float>(high - 16));
    });
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    const auto scales = Dot::template halves<1, kBlocks>(blocks, kBytes).times(x.scales);
    Dot::template each<kBlocks>([&](int b) {
      const uint8_t* block = blocks + b * kBytes;
      const auto q =
          Dot::either(Dot::load_halves(block + 6), Dot::spread_bits(load_u32(block + 2), 16));
      dot.add_bytes(Dot::minus(q, 16), scales, b, x.numbers + b * kElements);
    });
  }
};
using DecodeQ5_0 = DecodeBlocks<Q5_0Block>;
using DotQ5_0 = DotBlocks<Q5_0Block>;
JACKSCREW_ROW_KERNEL(DecodeQ5_0)
JACKSCREW_ROW_KERNEL(DotQ5_0)

}  // namespace jackscrew
