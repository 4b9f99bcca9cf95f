// Plain matrix arithmetic in double, and random matrices, for the tests of this room.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

#include "base/half.h"
#include "tensor/tensor.h"
#include "tests/support/worse.h"

namespace jackscrew {

// Sums of at most a few thousand terms in f32, in units of the sum of the terms' magnitudes:
// blocked summation loses a few units in the last place (2^-24).
inline constexpr double kF32 = 1e-6;

struct Matrix {
  int64_t rows = 0, cols = 0;
  std::vector<float> values;

  Matrix(int64_t r, int64_t c) : rows(r), cols(c), values(static_cast<size_t>(r * c)) {}
  float& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  float at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
  Tensor view() { return {values.data(), DType::f32, {rows, cols}}; }

  Matrix transposed() const {
    Matrix out(cols, rows);
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) out.at(c, r) = at(r, c);
    }
    return out;
  }
  Matrix rounded_to_bf16() const {
    Matrix out = *this;
    for (float& value : out.values) value = to_float(to_bf16(value));
    return out;
  }
};

inline Matrix random_matrix(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Matrix out(rows, cols);
  for (float& value : out.values) value = normal(random);
  return out;
}

// start + a b, and start + |a| |b|, which bounds what rounding can do to the sum.
struct Exact {
  std::vector<double> value, magnitude;
};

inline Exact multiply(const Matrix& a, const Matrix& b, const Matrix* start = nullptr) {
  Exact out;
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < b.cols; ++j) {
      const double first = start == nullptr ? 0.0 : static_cast<double>(start->at(i, j));
      double value = first;
      double magnitude = std::abs(first);
      for (int64_t k = 0; k < a.cols; ++k) {
        const double product = static_cast<double>(a.at(i, k)) * static_cast<double>(b.at(k, j));
        value += product;
        magnitude += std::abs(product);
      }
      out.value.push_back(value);
      out.magnitude.push_back(magnitude);
    }
  }
  return out;
}

// The largest error of any element in units of the magnitude of its sum.
inline double error_of(const Matrix& actual, const Exact& expected) {
  double worst = 0.0;
  for (size_t i = 0; i < expected.value.size(); ++i) {
    const double difference = std::abs(static_cast<double>(actual.values[i]) - expected.value[i]);
    const double error = difference == 0.0 ? 0.0 : difference / expected.magnitude[i];
    worst = worse(worst, error);
  }
  return worst;
}

}  // namespace jackscrew
