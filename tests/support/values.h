// Vectors of values.
#pragma once

#include <random>
#include <vector>

#include "tensor/tensor.h"

namespace jackscrew {

inline Tensor view_of(std::vector<float>& values) {
  return {values.data(), DType::f32, {static_cast<int64_t>(values.size())}};
}

inline std::vector<float> random_values(size_t count, uint32_t seed, float deviation = 1.0f) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(count);
  for (float& value : out) value = normal(random);
  return out;
}

}  // namespace jackscrew
