// Numbers -1, 0 and 1 times one f16 d for 256 elements.
// TQ1_0, 54 bytes: 48 bytes of five numbers each, 4 bytes of four each, d.
// TQ2_0, 66 bytes: 64 bytes of four numbers each, in bit pairs, d.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// A byte b stands for the fraction b / 256, whose digits in base three are the numbers plus 1:
// multiplying by three moves the next digit above the byte.
struct TQ1_0Block {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 54;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block + 52);
    const auto put = [=](int64_t to, int32_t digit) {
      store(to, d * static_cast<float>((digit >> 8) - 1));
    };
    // Digit n of byte i is element 32 n + i of the first 160, then 16 n + i of the next 80.
    for (int64_t part = 0; part < 3; ++part) {
      const auto bytes = team.sixteen(block + 16 * part);
      const int64_t to = part < 2 ? 16 * part : 160;
      const int64_t step = part < 2 ? 32 : 16;
      team.each(16, [&](int64_t i) {
        const int32_t digit_0 = bytes[i] * 3;
        const int32_t digit_1 = (digit_0 & 255) * 3;
        const int32_t digit_2 = (digit_1 & 255) * 3;
        const int32_t digit_3 = (digit_2 & 255) * 3;
        const int32_t digit_4 = (digit_3 & 255) * 3;
        put(to + i, digit_0);
        put(to + i + step, digit_1);
        put(to + i + 2 * step, digit_2);
        put(to + i + 3 * step, digit_3);
        put(to + i + 4 * step, digit_4);
      });
    }
    team.each(4, [&](int64_t i) {
      const int32_t digit_0 = block[48 + i] * 3;
      const int32_t digit_1 = (digit_0 & 255) * 3;
      const int32_t digit_2 = (digit_1 & 255) * 3;
      const int32_t digit_3 = (digit_2 & 255) * 3;
      put(240 + i, digit_0);
      put(244 + i, digit_1);
      put(248 + i, digit_2);
      put(252 + i, digit_3);
    });
  }
};

struct TQ2_0Block {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 66;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block + 64);
    // In the order of Q2_K.
    for (int64_t part = 0; part < 4; ++part) {
      const auto pairs = team.sixteen(block + part * 16);
      const int64_t to = part / 2 * 128 + part % 2 * 16;
      team.each(16, [&](int64_t i) {
        const int32_t four = pairs[i];
        store(to + i, d * static_cast<float>((four & 3) - 1));
        store(to + i + 32, d * static_cast<float>((four >> 2 & 3) - 1));
        store(to + i + 64, d * static_cast<float>((four >> 4 & 3) - 1));
        store(to + i + 96, d * static_cast<float>((four >> 6) - 1));
      });
    }
  }
};

using DecodeTQ1_0 = DecodeBlocks<TQ1_0Block>;
using DotTQ1_0 = DotBlocks<TQ1_0Block>;
using DecodeTQ2_0 = DecodeBlocks<TQ2_0Block>;
using DotTQ2_0 = DotBlocks<TQ2_0Block>;
JACKSCREW_ROW_KERNEL(DecodeTQ1_0)
JACKSCREW_ROW_KERNEL(DotTQ1_0)
JACKSCREW_ROW_KERNEL(DecodeTQ2_0)
JACKSCREW_ROW_KERNEL(DotTQ2_0)

}  // namespace jackscrew
