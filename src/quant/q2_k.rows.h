// Q2_K: 256 elements in 84 bytes: for each of 16 groups of 16 a byte with a 4-bit scale (low) and a
// 4-bit minimum (high), 64 bytes of bit pairs q, f16 d, f16 dmin. Value: d * scale * q - dmin *
// minimum.
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

struct Q2_KBlock : BytesDot<DotScales::half_groups> {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 84;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const float d = load_f16(team, block + 80);
    const float dmin = load_f16(team, block + 82);
    const auto scale = [&](int64_t group) { return d * static_cast<float>(block[group] & 15); };
    const auto minimum = [&](int64_t group) {
      return dmin * static_cast<float>(block[group] >> 4);
    };
    // Byte i of a half's 32 holds elements i, i + 32, i + 64 and i + 96 of the half, from the
    // lowest bits. Decoded 16 at a time, as a scale covers 16 elements.
    for (int64_t part = 0; part < 4; ++part) {
      const int64_t group = part / 2 * 8 + part % 2;
      const auto pairs = team.sixteen(block + 16 + part * 16);
      const float scale_0 = scale(group), min_0 = minimum(group);
      const float scale_1 = scale(group + 2), min_1 = minimum(group + 2);
      const float scale_2 = scale(group + 4), min_2 = minimum(group + 4);
      const float scale_3 = scale(group + 6), min_3 = minimum(group + 6);
      const int64_t to = group * 16;
      team.each(16, [&](int64_t i) {
        const int32_t four = pairs[i];
        store(to + i, scale_0 * static_cast<float>(four & 3) - min_0);
        store(to + i + 32, scale_1 * static_cast<float>(four >> 2 & 3) - min_1);
        store(to + i + 64, scale_2 * static_cast<float>(four >> 4 & 3) - min_2);
        store(to + i + 96, scale_3 * static_cast<float>(four >> 6) - min_3);
      });
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* block,
                                const typename Dot::Input& x) {
    static_assert(kBlocks == 1);
    constexpr uint64_t kNibbles = 0x0F0F0F0F0F0F0F0Fu;
    const auto d_and_dmin = Dot::template halves<2, 1>(block + 80, 0);
    Dot::template each<2>([&](int half) {
      const uint64_t both = load_u64(block + 8 * half);
      const auto scales =
          Dot::bytes(both & kNibbles).times(d_and_dmin.first()).times(x.scales + 8 * half);
      dot.add_offsets(Dot::bytes(both >> 4 & kNibbles).times(-d_and_dmin.second()),
                      x.sums + 8 * half);
      const auto pairs = Dot::load_bytes(block + 16 + 32 * half);
      Dot::template each<4>([&](int group) {
        dot.add_half_groups(Dot::bits(pairs, 2 * group, 3), scales, 2 * group,
                            x.numbers + 128 * half + 32 * group);
      });
    });
  }
};
using DecodeQ2_K = DecodeBlocks<Q2_KBlock>;
using DotQ2_K = DotBlocks<Q2_KBlock>;
JACKSCREW_ROW_KERNEL(DecodeQ2_K)
JACKSCREW_ROW_KERNEL(DotQ2_K)

}  // namespace jackscrew
