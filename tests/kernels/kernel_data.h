// Test data for kernels: reproducible numbers, strided matrices, the error measure.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "base/half.h"
#include "base/philox.h"
#include "tensor/tensor.h"
#include "tests/kernels/reference.h"

namespace jackscrew {

using reference::at;
using reference::Doubles;

// Uniform in [-1, 1); different for every seed.
inline std::vector<float> random_floats(int64_t count, uint32_t seed) {
  const RandomStream stream = RandomStream::make(seed, RandomPurpose::init, 0, 0);
  std::vector<float> out(at(count));
  for (size_t i = 0; i < out.size(); i += 4) {
    const Philox4 four = stream.four(i / 4);
    for (size_t j = 0; j < 4 && i + j < out.size(); ++j) {
      out[i + j] = 2.0f * RandomStream::uniform_of(four.x[j]) - 1.0f;
    }
  }
  return out;
}

inline Doubles widen(const std::vector<float>& values) {
  return Doubles(values.begin(), values.end());
}

inline std::vector<float> narrowed(const Doubles& values) {
  std::vector<float> out;
  for (const double value : values) out.push_back(static_cast<float>(value));
  return out;
}

// max |got - want| / max |want|; NaN anywhere gives infinity, all zeros give the difference itself.
inline double relative_error(const std::vector<float>& got, const Doubles& want) {
  if (got.size() != want.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double magnitude = 0.0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = std::fabs(static_cast<double>(got[i]) - want[i]);
    if (!(d <= std::numeric_limits<double>::max())) return std::numeric_limits<double>::infinity();
    difference = std::fmax(difference, d);
    magnitude = std::fmax(magnitude, std::fabs(want[i]));
  }
  return magnitude > 0.0 ? difference / magnitude : difference;
}

// A matrix whose rows lie `gap` elements further apart than they are long. The gaps hold NaN:
// reading them spoils the result, writing them is seen by gaps_intact().
template <typename T>
class Strided {
 public:
  Strided(int64_t rows, int64_t cols, int64_t gap)
      : rows_(rows), cols_(cols), stride_(cols + gap), data_(at(rows * stride_), gap_value()) {}

  static Strided random(int64_t rows, int64_t cols, int64_t gap, uint32_t seed) {
    Strided out(rows, cols, gap);
    out.set(random_floats(rows * cols, seed));
    return out;
  }

  void set(const std::vector<float>& values) {
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      T& element = data_[at(i / cols_ * stride_ + i % cols_)];
      if constexpr (sizeof(T) == 2) {
        element = to_bf16(values[at(i)]);
      } else {
        element = values[at(i)];
      }
    }
  }

  std::vector<float> values() const {
    std::vector<float> out;
    for (int64_t i = 0; i < rows_ * cols_; ++i) {
      out.push_back(to_float(data_[at(i / cols_ * stride_ + i % cols_)]));
    }
    return out;
  }

  bool gaps_intact() const {
    for (int64_t i = 0; i < rows_ * stride_; ++i) {
      if (i % stride_ >= cols_ && !std::isnan(to_float(data_[at(i)]))) return false;
    }
    return true;
  }

  Tensor view() {
    return Tensor(data_.data(), DTypeOf<T>::value, {rows_, stride_}).columns(0, cols_);
  }

 private:
  static T gap_value() {
    if constexpr (sizeof(T) == 2) {
      return T{0x7FC0};
    } else {
      return std::numeric_limits<float>::quiet_NaN();
    }
  }

  int64_t rows_, cols_, stride_;
  std::vector<T> data_;
};

}  // namespace jackscrew
