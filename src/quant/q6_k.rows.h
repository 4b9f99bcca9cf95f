// Q6_K: 256 elements in 210 bytes: 128 bytes of nibbles, 64 bytes of bit pairs above them, signed
// byte scales of 16 groups of 16, f16 d. Value: d * scale * (q - 32).
#pragma once

#include "quant/block_row.h"

namespace jackscrew {

JACKSCREW_ROW float signed_byte(uint8_t byte) {
  return static_cast<float>(static_cast<int8_t>(byte));
}

struct Q6_KBlock : BytesDot<DotScales::half_groups> {
  static constexpr int64_t kElements = 256;
  static constexpr int64_t kBytes = 210;

  template <class Team, class Store>
  JACKSCREW_ROW static void decode(const Team& team, const uint8_t* block, const Store& store) {
    const uint8_t* scales = block + 192;
    const float d = load_f16(team, block + 208);
    // Each half of the block has 64 bytes of nibbles and 32 of bit pairs: byte i of the pairs
    // belongs to elements i, i + 32, i + 64 and i + 96 of the half. Decoded 16 at a time, as a
    // scale covers 16 elements.
    for (int64_t part = 0; part < 4; ++part) {
      const int64_t half = part / 2;
      const int64_t first = part % 2 * 16;
      const auto nibbles_a = team.sixteen(block + half * 64 + first);
      const auto nibbles_b = team.sixteen(block + half * 64 + 32 + first);
      const auto pairs = team.sixteen(block + 128 + half * 32 + first);
      const uint8_t* scale = scales + half * 8 + part % 2;
      const float scale_0 = d * signed_byte(scale[0]);
      const float scale_1 = d * signed_byte(scale[2]);
      const float scale_2 = d * signed_byte(scale[4]);
      const float scale_3 = d * signed_byte(scale[6]);
      const int64_t to = half * 128 + first;
      team.each(16, [&](int64_t i) {
        const int32_t a = nibbles_a[i];
        const int32_t b = nibbles_b[i];
        const int32_t high = pairs[i];
        store(to + i, scale_0 * static_cast<float>(((a & 15) | (high << 4 & 48)) - 32));
        store(to + i + 32, scale_1 * static_cast<float>(((b & 15) | (high << 2 & 48)) - 32));
        store(to + i + 64, scale_2 * static_cast<float>((a >> 4 | (high & 48)) - 32));
        store(to + i + 96, scale_3 * static_cast<float>((b >> 4 | (high >> 2 & 48)) - 32));
      });
    }
  }

  template <int kBlocks, class Dot, class Numbers>
  JACKSCREW_ROW static void dot(Dot& dot, const Numbers&, const uint8_t* block,
                                const typename Dot::Input& x) {
    static_assert(kBlocks == 1);
    const float d = Dot::template halves<1, 1>(block + 208, 0).first();
    Dot::template each<2>([&](int half) {
      const auto scales =
          Dot::signed_bytes(load_u64(block + 192 + 8 * half)).times(d).times(x.scales + 8 * half);
      const auto nibbles_a = Dot::load_bytes(block + 64 * half);
      const auto nibbles_b = Dot::load_bytes(block + 64 * half + 32);
      const auto pairs = Dot::load_bytes(block + 128 + 32 * half);
      const auto add = [&](int group, const auto& low, int high_shift) {
        const auto q = Dot::either(low, Dot::bits(pairs, high_shift, 48));
        dot.add_half_groups(Dot::minus(q, 32), scales, 2 * group,
                            x.numbers + 128 * half + 32 * group);
      };
      add(0, Dot::bits(nibbles_a, 0, 15), -4);
      add(1, Dot::bits(nibbles_b, 0, 15), -2);
      add(2, Dot::bits(nibbles_a, 4, 15), 0);
      add(3, Dot::bits(nibbles_b, 4, 15), 2);
    });
  }
};
using DecodeQ6_K = DecodeBlocks<Q6_KBlock>;
using DotQ6_K = DotBlocks<Q6_KBlock>;
JACKSCREW_ROW_KERNEL(DecodeQ6_K)
JACKSCREW_ROW_KERNEL(DotQ6_K)

}  // namespace jackscrew
