// int8_dynamic: groups of the row-major flattening. Value: absmax * map[q], with the signed map of
// dynamic_map.h.
#pragma once

#include "quant/affine_grid.h"
#include "quant/dynamic_map.h"
#include "quant/group_row.h"

namespace jackscrew {

struct Int8DynamicCodec {
  DynamicMap map;
  uint8_t* codes;  // [elements]
  float* absmax;   // [groups]

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const float scale = absmax[group];
    team.each_byte(codes + element, count,
                   [&](int64_t i, int32_t q) { store(i, scale * map.values[q]); });
  }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    return absmax[group] * team.sum_bytes(codes + element, count, [&](int64_t i, int32_t q) {
      return x[i] * map.values[q];
    });
  }

  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const float* from, const GroupRounding& rounding) const {
    const float scale = rounding.of_all.in_place ? scale_in_place(team, group, from, count)
                                                 : largest_magnitude(team, from, count);
    team.once([&] { absmax[group] = scale; });
    const float divisor = scale > 0.0f ? scale : 1.0f;
    put_rounded(team, rounding, count, codes + element, [&](int64_t i, auto... uniform) {
      return dynamic_code(map, from[i] / divisor, uniform...);
    });
  }

  // The map ends above -1: were the largest magnitude always the scale, a negative extreme would
  // shrink at every step. So a group keeps its scale as those of affine_grid.h do, and a new one
  // reaches its extremes on both sides.
  template <class Team>
  JACKSCREW_ROW float scale_in_place(const Team& team, int64_t group, const float* from,
                                     int64_t count) const {
    const float lowest = map.values[0];
    const float needed = team.max(count, 0.0f, [&](int64_t i) {
      return nan_to_infinity(row_max(from[i], from[i] / lowest));
    });
    const float before = absmax[group];
    const bool keeps = needed <= before && needed >= kAffineLeast * before;
    return keeps ? before : kAffineHeadroom * needed;
  }
};
using DecodeInt8Dynamic = DecodeGroups<Int8DynamicCodec>;
using DotInt8Dynamic = DotGroups<Int8DynamicCodec>;
using EncodeInt8Dynamic = EncodeGroups<Int8DynamicCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt8Dynamic)
JACKSCREW_ROW_KERNEL(DotInt8Dynamic)
JACKSCREW_ROW_KERNEL(EncodeInt8Dynamic)

}  // namespace jackscrew
