// Q3_K: 256 elements in 110 bytes: 32 bytes of third bits, 64 bytes of bit pairs, 12 bytes of 6-bit
// scales of 16 groups of 16, f16 d. Value: d * (scale - 32) * q, where q is the bit pair, minus 4
// if the third bit is not set.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

// Returns scale - 32. The low four bits of the scales of groups 0 to 7 are the low nibbles of bytes
// 0 to 7, those of groups 8 to 15 the high ones; bytes 8 to 11 hold the high two bits, those of
// groups 0 to 3 lowest.
JACKSCREW_ROW float q3_k_scale(const uint8_t* packed, int64_t group) {
  const int32_t low = packed[group % 8] >> group / 8 * 4 & 15;
  const int32_t high = packed[8 + group % 4] >> group / 4 * 2 & 3;
  return static_cast<float>((low | high << 4) - 32);
}

struct Q3_KBlock : BytesDot<DotScales::half_groups> {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 110;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint8_t* packed = block + 96;
    const float d = load_f16(team, block + 108);
    // Byte i of a half's 32 bytes of pairs holds elements i, i + 32, i + 64 and i + 96 of the half,
    // from the lowest bits; bit g of byte i of the third bits is that of element i + 32 g. Decoded
    // 16 at a time, as a scale covers 16 elements.
    for (int64_t part = 0; part < 4; ++part) {
      const int64_t half = part / 2;
      const int64_t group = half * 8 + part % 2;
      const auto pairs = team.sixteen(block + 32 + part * 16);
      const auto thirds = team.sixteen(block + part % 2 * 16);
      const float scale_0 = d * q3_k_scale(packed, group);
      const float scale_1 = d * q3_k_scale(packed, group + 2);
      const float scale_2 = d * q3_k_scale(packed, group + 4);
      const float scale_3 = d * q3_k_scale(packed, group + 6);
      const int64_t to = group * 16;
      team.each(16, [&](int64_t i) {
        const int32_t four = pairs[i];
        const int32_t third = thirds[i] >> 4 * half;
        store(to + i, scale_0 * static_cast<float>(((four & 3) | (third << 2 & 4)) - 4));
        store(to + i + 32, scale_1 * static_cast<float>(((four >> 2 & 3) | (third << 1 & 4)) - 4));
        store(to + i + 64, scale_2 * static_cast<float>(((four >> 4 & 3) | (third & 4)) - 4));
        store(to + i + 96, scale_3 * static_cast<float>((four >> 6 | (third >> 1 & 4)) - 4));
      });
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* block,
                                const typename Dot::Input& x) {
    static_assert(kBlocks == 1);
    constexpr uint64_t kNibbles = 0x0F0F0F0F0F0F0F0Fu;
    const uint64_t low = load_u64(block + 96);
    const uint32_t high = load_u32(block + 104);
    const float d = Dot::template halves<1, 1>(block + 108, 0).first();
    const auto thirds = Dot::load_bytes(block);
    Dot::template each<2>([&](int half) {
      constexpr uint32_t kPairs = 0x03030303;
      const uint64_t of_four = high >> 4 * half & kPairs;
      const uint64_t of_next_four = high >> (4 * half + 2) & kPairs;
      const uint64_t packed = (low >> 4 * half & kNibbles) | (of_four | of_next_four << 32) << 4;
      const auto scales = Dot::bytes(packed).plus(-32.0f).times(d).times(x.scales + 8 * half);
      const auto pairs = Dot::load_bytes(block + 32 + 32 * half);
      Dot::template each<4>([&](int group) {
        const auto q =
            Dot::either(Dot::bits(pairs, 2 * group, 3), Dot::bits(thirds, 4 * half + group - 2, 4));
        dot.add_half_groups(Dot::minus(q, 4), scales, 2 * group,
                            x.numbers + 128 * half + 32 * group);
      });
    });
  }
};
using DecodeQ3_K = DecodeBlocks<Q3_KBlock>;
using DotQ3_K = DotBlocks<Q3_KBlock>;
JACKSCREW_ROW_KERNEL(DecodeQ3_K)
JACKSCREW_ROW_KERNEL(DotQ3_K)

}  // namespace jackscrew
