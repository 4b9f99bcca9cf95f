// How the CPU rounds where it multiplies a single token by codes: kernels/row_dot_cpu.h.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

namespace jackscrew {

struct TokenRounding {
  int largest_x = 0;          // to which the largest magnitude of 32 columns is rounded; 0: f32
  double weight_error = 0.0;  // at most, of the largest weight
};

// x as the product sees it. What is rounded so already stays as it is: where x is not to show how
// it is rounded, a test gives such an x.
inline std::vector<float> rounded_token(std::vector<float> x, const TokenRounding& rounding) {
  if (rounding.largest_x == 0) return x;
  const auto largest = static_cast<float>(rounding.largest_x);
  for (size_t begin = 0; begin < x.size(); begin += 32) {
    const size_t end = std::min(x.size(), begin + 32);
    float magnitude = 0.0f;
    for (size_t i = begin; i < end; ++i) magnitude = std::max(magnitude, std::abs(x[i]));
    if (magnitude == 0.0f) continue;
    const float inverse = largest / magnitude;
    const float scale = magnitude / largest;
    for (size_t i = begin; i < end; ++i) x[i] = std::rint(x[i] * inverse) * scale;
  }
  return x;
}

}  // namespace jackscrew
