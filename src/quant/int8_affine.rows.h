// int8_affine: groups of the row-major flattening. Value: scale * (q - zero) with q and zero in
// [0, 255]. The range that is coded includes 0, so that 0 is exact and no group is cut off far from
// it.
#pragma once

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
                            const float* from, const Rounding& rounding) const {
    const float top = team.max(count, 0.0f, [&](int64_t i) { return nan_to_infinity(from[i]); });
    const float bottom =
        team.max(count, 0.0f, [&](int64_t i) { return nan_to_infinity(-from[i]); });
    const float range = top + bottom;
    // Finite even where the range is 0 or subnormal.
    const float inverse = row_min(255.0f / range, 3.4028235e38f);
    const float zero = row_min(row_max(round_to_integer(bottom * inverse), 0.0f), 255.0f);
    team.once([&] {
      scales[group] = range / 255.0f;
      zeros[group] = static_cast<uint8_t>(zero);
    });
    put_rounded(team, rounding, element, count, codes + element, [&](int64_t i, auto... uniform) {
      const float q = round_to_integer(from[i] * inverse, uniform...) + zero;
      // In this order of operands NaN becomes 0.
      return static_cast<int32_t>(row_min(row_max(q, 0.0f), 255.0f));
    });
  }
};
using DecodeInt8Affine = DecodeGroups<Int8AffineCodec>;
using DotInt8Affine = DotGroups<Int8AffineCodec>;
using EncodeInt8Affine = EncodeGroups<Int8AffineCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt8Affine)
JACKSCREW_ROW_KERNEL(DotInt8Affine)
JACKSCREW_ROW_KERNEL(EncodeInt8Affine)

}  // namespace jackscrew
