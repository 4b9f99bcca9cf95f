// Prepares int8 matrices for their products.
#pragma once

#include "kernels/row_kernel.h"

namespace jackscrew {

// to = from + shift, as unsigned bytes.
struct ShiftCodes {
  const int8_t* from;  // [rows, width], row stride from_stride
  uint8_t* to;         // [rows, width], row stride to_stride
  int64_t width, from_stride, to_stride;
  int32_t shift;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int8_t* in = from + row * from_stride;
    uint8_t* out = to + row * to_stride;
    const auto add = static_cast<uint8_t>(shift);
    team.each(width,
              [&](int64_t i) { out[i] = static_cast<uint8_t>(static_cast<uint8_t>(in[i]) + add); });
  }
};
JACKSCREW_ROW_KERNEL(ShiftCodes)

}  // namespace jackscrew
