// int8_absmax: a row is a group. Value: q * absmax / 127, rounded twice as in bitsandbytes: q *
// absmax, then that product times the f32 nearest to 1 / 127.
#pragma once

#include "quant/group_row.h"

namespace jackscrew {

struct Int8AbsmaxCodec {
  int8_t* codes;  // [rows, cols]
  float* absmax;  // [rows]

  static constexpr float kInverse = 7.874015718698502e-3f;

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const float largest = absmax[group];
    team.each_byte(codes + element, count, [&](int64_t i, int32_t q) {
      store(i, static_cast<float>(q) * largest * kInverse);
    });
  }

  // See DecodesEights.
  template <class Team>
  JACKSCREW_ROW auto eights(const Team&) const {
    return [this](int64_t group, int64_t element, const auto& put) {
      const float largest = absmax[group];
      each_of_eight_bytes(codes + element, [&](uint32_t i, int32_t q) {
        put(i, static_cast<float>(q) * largest * kInverse);
      });
      return 1.0f;  // a factor of both would round otherwise
    };
  }

  // See HasByteDot.
  JACKSCREW_ROW float dot_scale(int64_t group) const { return absmax[group] * kInverse; }
  JACKSCREW_ROW int32_t dot_zero(int64_t) const { return 0; }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    return absmax[group] * kInverse *
           team.sum_bytes(codes + element, count,
                          [&](int64_t i, int32_t q) { return x[i] * static_cast<float>(q); });
  }
};
using DecodeInt8Absmax = DecodeGroups<Int8AbsmaxCodec>;
using DotInt8Absmax = DotGroups<Int8AbsmaxCodec>;
JACKSCREW_ROW_KERNEL(DecodeInt8Absmax)
JACKSCREW_ROW_KERNEL(DotInt8Absmax)

}  // namespace jackscrew
