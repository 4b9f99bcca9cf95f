// int8_affine: groups of the row-major flattening. Value: scale * (q - zero) with q and zero in
// [0, 255]; see affine_grid.h.
#pragma once

#include "quant/affine_grid.h"
#include "quant/group_row.h"

namespace jackscrew {

struct Int8AffineCodec {
  uint8_t* codes;  // [elements]
  float* scales;   // [groups]
  uint8_t* zeros;  // [groups]

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const float scale = scales[group];
    const int32_t zero = zeros[group];
    team.each_byte(codes + element, count,
                   [&](int64_t i, int32_t q) { store(i, scale * static_cast<float>(q - zero)); });
  }

  // See DecodesEights.
  template <class Team>
  JACKSCREW_ROW auto eights(const Team&) const {
    return [this](int64_t group, int64_t element, const auto& put) {
      const float scale = scales[group];
      const auto zero = static_cast<int32_t>(zeros[group]);
      each_of_eight_bytes(codes + element,
                          [&](uint32_t i, int32_t q) { put(i, static_cast<float>(q - zero)); });
      return scale;
    };
  }

  // See HasByteDot.
  JACKSCREW_ROW float dot_scale(int64_t group) const { return scales[group]; }
  JACKSCREW_ROW int32_t dot_zero(int64_t group) const { return zeros[group]; }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    const int32_t zero = zeros[group];
    return scales[group] * team.sum_bytes(codes + element, count, [&](int64_t i, int32_t q) {
      return x[i] * static_cast<float>(q - zero);
    });
  }

  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const float* from, const GroupRounding& rounding) const {
    const auto before = AffineGrid<255>::of(scales[group], static_cast<float>(zeros[group]));
    const auto grid = affine_grid(team, from, count, before, rounding.of_all.in_place);
    team.once([&] {
      scales[group] = grid.scale;
      zeros[group] = static_cast<uint8_t>(grid.zero);
    });
    put_rounded(team, rounding, count, codes + element,
                [&](int64_t i, auto... uniform) { return grid.code(from[i], uniform...); });
  }
};
using DecodeInt8Affine = DecodeGroups<Int8AffineCodec>;
using DotInt8Affine = DotGroups<Int8AffineCodec>;
using EncodeInt8Affine = EncodeGroups<Int8AffineCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt8Affine)
JACKSCREW_ROW_KERNEL(DotInt8Affine)
JACKSCREW_ROW_KERNEL(EncodeInt8Affine)

}  // namespace jackscrew
