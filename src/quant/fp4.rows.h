// 4-bit floats (E2M1: a sign, two bits of exponent, one of mantissa) times a scale that is a small
// float itself. As in ggml, the table has twice the values of E2M1, and scales are halved.
// MXFP4: 32 elements in 17 bytes: a scale of 8 exponent bits, 16 bytes of codes.
// NVFP4: 64 elements in 36 bytes: the scales of 4 groups of 16 (E4M3 without a sign), then 8 bytes
// of codes for each.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// Twice the value of each code; there is no -0.
struct Fp4Values {
  static constexpr int kLargest = 12;
  JACKSCREW_ROW static const SixteenValues& values() {
    static constexpr SixteenValues kValues = {0, 1,  2,  3,  4,  6,  8,  12,
                                              0, -1, -2, -3, -4, -6, -8, -12};
    return kValues;
  }
};

// 2^(exponent - 128), which is subnormal for exponents of 0 and 1.
JACKSCREW_ROW float mxfp4_scale(uint32_t exponent) {
  return bits_float(exponent < 2 ? 0x200000u << exponent : (exponent - 1) << 23);
}

// Half of an E4M3 number; its NaN counts as 0, as in ggml.
JACKSCREW_ROW float nvfp4_scale(uint32_t bits) {
  const uint32_t exponent = bits >> 3 & 15;
  const uint32_t mantissa = bits & 7;
  const float subnormal = static_cast<float>(static_cast<int32_t>(mantissa)) * 0x1p-10f;
  const float normal = bits_float((exponent + 119) << 23 | mantissa << 20);
  return bits == 0x7F ? 0.0f : exponent == 0 ? subnormal : normal;
}

struct MXFP4Block : TableDot<Fp4Values> {
  static constexpr int64_t kElements = 32;
  static constexpr int64_t kBytes = 17;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    decode_halves(team, Fp4Values::values(), mxfp4_scale(block[0]), block + 1, 0, store);
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers& numbers, const uint8_t* blocks,
                                const typename Dot::Input& x) {
    uint64_t exponents = 0;
    Dot::template each<kBlocks>(
        [&](int b) { exponents |= static_cast<uint64_t>(blocks[b * kBytes]) << 8 * b; });
    const auto scales = Dot::powers(exponents).times(x.scales);
    each_vector<kBlocks, Dot>([&]<int kCount>(int first) {
      dot.add(numbers, Dot::template codes<kCount>(blocks + first * kBytes + 1, kBytes),
              scales.lanes(first, 1), x.numbers + first * kElements);
    });
  }
};

// Byte i of a group holds elements i (low nibble) and i + 8.
struct NVFP4Block {
  static constexpr int64_t kElements = 64;
  static constexpr int64_t kBytes = 36;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    constexpr uint64_t kNibbles = 0x0F0F0F0F0F0F0F0Fu;
    for (int64_t group = 0; group < 4; ++group) {
      const float scale = nvfp4_scale(block[group]);
      const uint64_t bytes = load_u64(block + 4 + 8 * group);
      const auto codes = team.sixteen(bytes & kNibbles, bytes >> 4 & kNibbles);
      const auto values = team.lookup(Fp4Values::values(), codes, 0);
      team.each(16, [&](int64_t i) { store(16 * group + i, scale * values[i]); });
    }
  }
};

using DecodeMXFP4 = DecodeBlocks<MXFP4Block>;
using DotMXFP4 = DotBlocks<MXFP4Block>;
using DecodeNVFP4 = DecodeBlocks<NVFP4Block>;
using DotNVFP4 = DotBlocks<NVFP4Block>;
JACKSCREW_ROW_KERNEL(DecodeMXFP4)
JACKSCREW_ROW_KERNEL(DotMXFP4)
JACKSCREW_ROW_KERNEL(DecodeNVFP4)
JACKSCREW_ROW_KERNEL(DotNVFP4)

}  // namespace jackscrew
