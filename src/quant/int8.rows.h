// int8: groups along the row. Value: scale * q with q in [-127, 127] and scale = absmax / 127.
#pragma once

#include "quant/group_row.h"

namespace jackscrew {

struct Int8Codec {
  int8_t* codes;  // [rows, cols]
  float* scales;  // [rows, row_groups]

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const float scale = scales[group];
    team.each_byte(codes + element, count,
                   [&](int64_t i, int32_t q) { store(i, scale * static_cast<float>(q)); });
  }

  // See DecodesEights.
  template <class Team>
  JACKSCREW_ROW auto eights(const Team&) const {
    return [this](int64_t group, int64_t element, const auto& put) {
      each_of_eight_bytes(codes + element,
                          [&](uint32_t i, int32_t q) { put(i, static_cast<float>(q)); });
      return scales[group];
    };
  }

  // See HasByteDot.
  JACKSCREW_ROW float dot_scale(int64_t group) const { return scales[group]; }
  JACKSCREW_ROW int32_t dot_zero(int64_t) const { return 0; }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    return scales[group] * team.sum_bytes(codes + element, count, [&](int64_t i, int32_t q) {
      return x[i] * static_cast<float>(q);
    });
  }

  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const float* from, const GroupRounding& rounding) const {
    const float scale = largest_magnitude(team, from, count) / 127.0f;
    team.once([&] { scales[group] = scale; });
    const float divisor = scale > 0.0f ? scale : 1.0f;
    put_rounded(team, rounding, count, codes + element, [&](int64_t i, auto... uniform) {
      const float q = round_to_integer(from[i] / divisor, uniform...);
      // In this order of operands NaN becomes -127.
      return static_cast<int32_t>(row_min(row_max(q, -127.0f), 127.0f));
    });
  }
};
using DecodeInt8 = DecodeGroups<Int8Codec>;
using DotInt8 = DotGroups<Int8Codec>;
using EncodeInt8 = EncodeGroups<Int8Codec>;
JACKSCREW_ROW_KERNEL(DecodeInt8)
JACKSCREW_ROW_KERNEL(DotInt8)
JACKSCREW_ROW_KERNEL(EncodeInt8)

}  // namespace jackscrew
