// int4_affine: groups of 256 elements of the row-major flattening, two codes in a byte, the even
// element in the high nibble. Value: scale * (q - zero) with q and zero in [0, 15]; see
// affine_grid.h.
#pragma once

#include "quant/affine_grid.h"
#include "quant/group_row.h"
#include "quant/nibbles.h"

namespace jackscrew {

struct Int4AffineCodec {
  uint8_t* codes;  // [ceil(elements / 2)]
  float* scales;   // [groups]
  uint8_t* zeros;  // [groups]

  struct Values {
    float of_code[16];
  };
  JACKSCREW_ROW Values values(int64_t group, float scale) const {
    Values out;
    const int32_t zero = zeros[group];
    for (int32_t q = 0; q < 16; ++q) out.of_code[q] = scale * static_cast<float>(q - zero);
    return out;
  }

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const Values table = values(group, scales[group]);
    each_nibble_value(team, codes, table.of_code, element, count, store);
  }

  // See DecodesEights.
  template <class Team>
  JACKSCREW_ROW auto eights(const Team&) const {
    return [this](int64_t group, int64_t element, const auto& put) {
      const auto zero = static_cast<int32_t>(zeros[group]);
      each_of_eight_nibbles(codes + element / 2, [&](uint32_t i, uint32_t bits) {
        put(i, static_cast<float>(static_cast<int32_t>(bits & 15u) - zero));
      });
      return scales[group];
    };
  }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    const Values table = values(group, 1.0f);
    return scales[group] * dot_nibbles(team, codes, table.of_code, element, count, x);
  }

  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const float* from, const GroupRounding& rounding) const {
    const auto before = AffineGrid<15>::of(scales[group], static_cast<float>(zeros[group]));
    const auto grid = affine_grid(team, from, count, before, rounding.of_all.in_place);
    team.once([&] {
      scales[group] = grid.scale;
      zeros[group] = static_cast<uint8_t>(grid.zero);
    });
    put_nibbles(team, rounding, element, count, codes, static_cast<int32_t>(grid.zero),
                [&](int64_t i, auto... uniform) { return grid.code(from[i], uniform...); });
  }
};
using DecodeInt4Affine = DecodeGroups<Int4AffineCodec>;
using DotInt4Affine = DotGroups<Int4AffineCodec>;
using EncodeInt4Affine = EncodeGroups<Int4AffineCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt4Affine)
JACKSCREW_ROW_KERNEL(DotInt4Affine)
JACKSCREW_ROW_KERNEL(EncodeInt4Affine)

}  // namespace jackscrew
