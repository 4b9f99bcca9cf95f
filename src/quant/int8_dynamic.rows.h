// int8_dynamic: groups of the row-major flattening. Value: absmax * map[q], with the signed map of
// dynamic_map.h.
#pragma once

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
    const float scale = largest_magnitude(team, from, count);
    team.once([&] { absmax[group] = scale; });
    const float divisor = scale > 0.0f ? scale : 1.0f;
    put_rounded(team, rounding, count, codes + element, [&](int64_t i, auto... uniform) {
      return dynamic_code(map, from[i] / divisor, uniform...);
    });
  }
};
using DecodeInt8Dynamic = DecodeGroups<Int8DynamicCodec>;
using DotInt8Dynamic = DotGroups<Int8DynamicCodec>;
using EncodeInt8Dynamic = EncodeGroups<Int8DynamicCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt8Dynamic)
JACKSCREW_ROW_KERNEL(DotInt8Dynamic)
JACKSCREW_ROW_KERNEL(EncodeInt8Dynamic)

}  // namespace jackscrew
