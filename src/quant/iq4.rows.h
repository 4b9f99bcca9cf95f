// Nibbles that stand for sixteen numbers, closer together around zero.
// IQ4_NL: 32 elements in 18 bytes: f16 d, 16 bytes of codes. Value: d * number.
// IQ4_XS: 256 elements in 136 bytes: f16 d, the high two bits of the scales of 8 groups of 32 (2
// bytes), their low four (4 bytes), 128 bytes of codes. Value: d * (scale - 32) * number.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

struct Iq4Values {
  static constexpr int kLargest = 127;
  JACKSCREW_ROW static const SixteenValues& values() {
    static constexpr SixteenValues kValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                              1,    13,   25,  38,  53,  69,  89,  113};
    return kValues;
  }
};

struct IQ4_NLBlock : TableDot<Iq4Values> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 18;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    decode_halves(team, Iq4Values::values(), load_f16(team, block), block + 2, 0, store);
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers& numbers, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    const auto scales = Dot::template halves<1, kBlocks>(blocks, kBytes).times(x.scales);
    each_vector<kBlocks, Dot>([&]<int kCount>(int first) {
      dot.add(numbers, Dot::template codes<kCount>(blocks + first * kBytes + 2, kBytes),
              scales.lanes(first, 1), x.numbers + first * kElements);
    });
  }
};

struct IQ4_XSBlock : TableDot<Iq4Values> {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 136;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block);
    const uint32_t high_bits = load_u16(block + 2);
    for (int64_t group = 0; group < 8; ++group) {
      const int32_t low = block[4 + group / 2] >> group % 2 * 4 & 15;
      const auto high = static_cast<int32_t>(high_bits >> 2 * static_cast<uint32_t>(group) & 3);
      const float scale = d * static_cast<float>((low | high << 4) - 32);
      decode_halves(team, Iq4Values::values(), scale, block + 8 + 16 * group, 32 * group, store);
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers& numbers, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    static_assert(kBlocks == 1);
    const float d = Dot::template halves<1, 1>(blocks, 0).first();
    const uint64_t bits = spread_nibbles(load_u32(blocks + 4)) | spread_pairs(load_u16(blocks + 2))
                                                                     << 4;
    const auto scales = Dot::bytes(bits).plus(-32.0f).times(d).times(x.scales);
    Dot::template each<8 / Dot::kLanes>([&](int v) {
      dot.add(numbers, Dot::codes(blocks + 8 + 16 * Dot::kLanes * v),
              scales.lanes(Dot::kLanes * v, 1), x.numbers + Dot::kVector * v);
    });
  }
};

using DecodeIQ4_NL = DecodeBlocks<IQ4_NLBlock>;
using DotIQ4_NL = DotBlocks<IQ4_NLBlock>;
using DecodeIQ4_XS = DecodeBlocks<IQ4_XSBlock>;
using DotIQ4_XS = DotBlocks<IQ4_XSBlock>;
JACKSCREW_ROW_KERNEL(DecodeIQ4_NL)
JACKSCREW_ROW_KERNEL(DotIQ4_NL)
JACKSCREW_ROW_KERNEL(DecodeIQ4_XS)
JACKSCREW_ROW_KERNEL(DotIQ4_XS)

}  // namespace jackscrew
