// Nibbles that stand for sixteen numbers, closer together around zero.
// IQ4_NL: 32 elements in 18 bytes: f16 d, 16 bytes of codes. Value: d * number.
// IQ4_XS: 256 elements in 136 bytes: f16 d, the high two bits of the scales of 8 groups of 32 (2
// bytes), their low four (4 bytes), 128 bytes of codes. Value: d * (scale - 32) * number.
#pragma once

#include "quant/decode_row.h"

namespace jackscrew {

using Iq4Values = float[16];
JACKSCREW_ROW const Iq4Values& iq4_values() {
  static constexpr Iq4Values kValues = {-127, -104, -83, -65, -49, -35, -22, -10,
                                        1,    13,   25,  38,  53,  69,  89,  113};
  return kValues;
}

// 32 elements, of which byte i holds i (low nibble) and i + 16, from element `to` on.
template <class Team, class Store>
JACKSCREW_ROW void decode_iq4(const Team& team, float scale, const uint8_t* bytes, int64_t to,
                              const Store& store) {
  const auto codes = team.sixteen(bytes);
  const auto low = team.lookup(iq4_values(), codes, 0);
  const auto high = team.lookup(iq4_values(), codes, 4);
  team.each(16, [&](int64_t i) {
    store(to + i, scale * low[i]);
    store(to + i + 16, scale * high[i]);
  });
}

struct IQ4_NLBlock {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 18;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    decode_iq4(team, load_f16(team, block), block + 2, 0, store);
  }

  static constexpr int64_t kSumStride = 1;
  template <int kBlocks, class Dot>
  JACKSCREW_ROW static void dot(Dot& dot, const uint8_t* blocks, const float* x,
                                const float* /*sums*/) {
    const typename Dot::WholeTable numbers(iq4_values());
    const auto d = Dot::template halves<1, kBlocks>(blocks, kBytes);
    Dot::template each<kBlocks>([&](int b) {
      dot.add_halves(numbers, blocks + b * kBytes + 2, d.all(b), x + b * kElements);
    });
  }
};

struct IQ4_XSBlock {
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
      decode_iq4(team, scale, block + 8 + 16 * group, 32 * group, store);
    }
  }

  static constexpr int64_t kSumStride = 1;
  template <int kBlocks, class Dot>
  JACKSCREW_ROW static void dot(Dot& dot, const uint8_t* blocks, const float* x,
                                const float* /*sums*/) {
    const typename Dot::WholeTable numbers(iq4_values());
    Dot::template each<kBlocks>([&](int b) {
      const uint8_t* block = blocks + b * kBytes;
      const float d = Dot::template halves<1, 1>(block, 0).first();
      const uint64_t bits = spread_nibbles(load_u32(block + 4)) | spread_pairs(load_u16(block + 2))
                                                                      << 4;
      const auto scales = Dot::bytes(bits).plus(-32.0f).times(d);
      Dot::template each<8>([&](int group) {
        dot.add_halves(numbers, block + 8 + 16 * group, scales.all(group),
                       x + b * kElements + 32 * group);
      });
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
