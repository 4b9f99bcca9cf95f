// Rounding to codes, and the random numbers of products of bytes, as a plain model of what they do.
#pragma once

#include <algorithm>
#include <string>

#include "base/checked.h"
#include "kernels/int8_group.h"
#include "kernels/step_scalars.h"
#include "tests/products/reference.h"

namespace jackscrew {

// A matrix as codes times scales.
struct Rounded {
  Matrix codes, values;
  std::vector<float> scales;  // [rows, groups]
};

// How numbers come to units of their scale: the last bit decides between two codes.
enum class ToCodes { divides, multiplies };

// Rounds row by row in groups of columns; round(row, column, value / scale) gives a code.
template <class Round>
Rounded rounded(const Matrix& m, int64_t group, int32_t limit, const Round& round,
                ToCodes to_codes = ToCodes::divides) {
  Rounded out{Matrix(m.rows, m.cols), Matrix(m.rows, m.cols), {}};
  const auto top = static_cast<float>(limit);
  for (int64_t r = 0; r < m.rows; ++r) {
    for (int64_t begin = 0; begin < m.cols; begin += group) {
      const int64_t end = std::min(m.cols, begin + group);
      float largest = 0.0f;
      for (int64_t c = begin; c < end; ++c) largest = std::max(largest, std::abs(m.at(r, c)));
      const float scale = largest / top;
      for (int64_t c = begin; c < end; ++c) {
        const float factor = largest > 0.0f ? std::min(top / largest, 3.4028235e38f) : 0.0f;
        const float value = to_codes == ToCodes::multiplies ? m.at(r, c) * factor
                            : scale > 0.0f                  ? m.at(r, c) / scale
                                                            : 0.0f;
        const float code = round(r, c, std::clamp(value, -top, top));
        out.codes.at(r, c) = code;
        out.values.at(r, c) = scale * code;
      }
      out.scales.push_back(scale);
    }
  }
  return out;
}

inline Rounded to_nearest(const Matrix& m, int64_t group, int32_t limit,
                          ToCodes to_codes = ToCodes::divides) {
  return rounded(
      m, group, limit, [](int64_t, int64_t, float value) { return std::nearbyint(value); },
      to_codes);
}

// Of a token and a column the number with which a product of bytes rounds a gradient of `width`
// columns: of sixteen blocks of four numbers for a group, the first of each block before the
// seconds.
inline float gradient_uniform(const StepScalars& scalars, const std::string& tensor, int64_t token,
                              int64_t column, int64_t width) {
  const RandomStream random = RandomStream::make(scalars.seed, RandomPurpose::gradient_rounding,
                                                 scalars.step, name_hash(tensor.c_str()));
  const int64_t group = token * ceil_div(width, kInt8Group) + column / kInt8Group;
  return random.uniform(
      static_cast<uint64_t>(4 * (16 * group + column % 16) + column % kInt8Group / 16));
}

// Either neighbour.
inline float stochastic(float value, float uniform) {
  const float below = std::floor(value);
  return uniform < value - below ? below + 1.0f : below;
}

// The second operand's partner in dW = dyᵀ x: dy [tokens, width], each token times its factor,
// transposed and rounded in groups of tokens.
inline Rounded rounded_columns(const Matrix& dy, const std::vector<float>& token_factors,
                               int32_t limit, const StepScalars& scalars, const std::string& weight,
                               int64_t first_token = 0) {
  Matrix columns = dy.transposed();
  for (int64_t n = 0; n < columns.rows; ++n) {
    for (int64_t t = 0; t < columns.cols; ++t) {
      columns.at(n, t) *= token_factors[static_cast<size_t>(t)];
    }
  }
  return rounded(
      columns, kInt8Group, limit,
      [&](int64_t n, int64_t t, float value) {
        return stochastic(
            value, gradient_uniform(scalars, weight + " of columns", first_token + t, n, dy.cols));
      },
      ToCodes::multiplies);
}

}  // namespace jackscrew
