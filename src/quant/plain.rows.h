// Floating-point storage: f32, bf16, f16. A row is a matrix row.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"

namespace jackscrew {

template <class To, class From>
JACKSCREW_ROW void convert_element(To& to, From from) {
  to = from_float<To>(to_float(from));
}
// Within one type nothing is rounded: a NaN keeps its bits.
template <class Element>
JACKSCREW_ROW void convert_element(Element& to, Element from) {
  to = from;
}

// to[row] = from[indices ? indices[row] : row], converted.
template <class From, class To>
struct ConvertRows {
  const From* from;        // [?, width], row stride from_stride
  const int32_t* indices;  // row list; null: rows in order
  To* to;                  // [rows, width], row stride to_stride
  int64_t width, from_stride, to_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const From* in = from + (indices != nullptr ? indices[row] : row) * from_stride;
    To* out = to + row * to_stride;
    team.each(width, [&](int64_t i) { convert_element(out[i], in[i]); });
  }
};

// y[row] = sum of x times row `row` of a matrix.
template <class Element>
struct DotRows {
  const float* x;         // [width]
  const Element* matrix;  // [rows, width]
  float* y;               // [rows]
  int64_t width;
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const Element* in = matrix + row * width;
    const float total = team.sum(width, [&](int64_t i) { return x[i] * to_float(in[i]); });
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }
};
using DotF32 = DotRows<float>;
using DotBf16 = DotRows<bf16>;
using DotF16 = DotRows<f16>;
JACKSCREW_ROW_KERNEL(DotF32)
JACKSCREW_ROW_KERNEL(DotBf16)
JACKSCREW_ROW_KERNEL(DotF16)

using ConvertF32F32 = ConvertRows<float, float>;
using ConvertF32Bf16 = ConvertRows<float, bf16>;
using ConvertF32F16 = ConvertRows<float, f16>;
using ConvertBf16F32 = ConvertRows<bf16, float>;
using ConvertBf16Bf16 = ConvertRows<bf16, bf16>;
using ConvertF16F32 = ConvertRows<f16, float>;
using ConvertF16Bf16 = ConvertRows<f16, bf16>;
JACKSCREW_ROW_KERNEL(ConvertF32F32)
JACKSCREW_ROW_KERNEL(ConvertF32Bf16)
JACKSCREW_ROW_KERNEL(ConvertF32F16)
JACKSCREW_ROW_KERNEL(ConvertBf16F32)
JACKSCREW_ROW_KERNEL(ConvertBf16Bf16)
JACKSCREW_ROW_KERNEL(ConvertF16F32)
JACKSCREW_ROW_KERNEL(ConvertF16Bf16)

}  // namespace jackscrew
