// What the tests of storage formats share.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/ops.h"
#include "quant/format.h"
#include "tests/support/rounded_token.h"

namespace jackscrew {

// Bytes seen as a matrix; tensors have no const of their own.
inline Storage storage_of(const std::vector<uint8_t>& bytes, int64_t rows, int64_t cols) {
  return {{const_cast<uint8_t*>(bytes.data()), DType::u8, {static_cast<int64_t>(bytes.size())}},
          rows,
          cols};
}

// Elements of a block, in formats of blocks: the fewest that make a row.
inline int64_t block_elements(const Format& format) {
  for (int64_t elements = 1;; elements *= 2) {
    try {
      format.row_bytes(elements);
      return elements;
    } catch (const Error&) {
    }
  }
}

// A matrix of `rows` rows, encoded as weights are: panel by panel.
inline std::vector<uint8_t> encode(Ops& ops, const Format& format, std::vector<float> values,
                                   int64_t rows, const Rounding& rounding = {}) {
  const int64_t cols = div_exact(static_cast<int64_t>(values.size()), rows);
  std::vector<uint8_t> bytes(static_cast<size_t>(format.storage_bytes(rows, cols)));
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, int64_t{8} << 20);
  const Tensor matrix(values.data(), DType::f32, {rows, cols});
  format.encode(
      ops, [&](int64_t begin, int64_t end) { return matrix.rows(begin, end); },
      storage_of(bytes, rows, cols), rounding, scratch);
  return bytes;
}

template <typename T = float>
std::vector<T> decode(Ops& ops, const Format& format, const Storage& storage, int64_t begin,
                      int64_t end) {
  const int64_t rows = end - begin;
  std::vector<T> values(static_cast<size_t>(rows * storage.cols));
  format.decode(ops, storage, begin, end, {values.data(), DTypeOf<T>::value, {rows, storage.cols}});
  return values;
}

// Whether the bits agree; says where they first do not.
inline ::testing::AssertionResult same_bits(const std::vector<float>& a,
                                            const std::vector<float>& b) {
  if (a.size() != b.size()) return ::testing::AssertionFailure() << a.size() << " != " << b.size();
  for (size_t i = 0; i < a.size(); ++i) {
    if (float_bits(a[i]) != float_bits(b[i])) {
      return ::testing::AssertionFailure() << "element " << i << ": " << a[i] << " != " << b[i];
    }
  }
  return ::testing::AssertionSuccess();
}

// The bytes of a vector, for comparisons that tell -0 from 0 and one NaN from another.
template <typename T>
std::vector<uint32_t> bits_of(const std::vector<T>& values) {
  std::vector<uint32_t> bits(values.size());
  for (size_t i = 0; i < values.size(); ++i) std::memcpy(&bits[i], &values[i], sizeof(T));
  return bits;
}

// The product of a single token with all rows, alone and added to what is there, is the sum of the
// decoded numbers' products with the rounded x, to f32's rounding.
inline void expect_product_of_a_token(Ops& ops, const Format& format, const Storage& storage,
                                      const std::vector<float>& decoded, std::vector<float> x,
                                      const TokenRounding& rounding, const std::string& what) {
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
  const std::vector<float> rounded = rounded_token(x, rounding);
  double largest_weight = 0.0;
  for (const float weight : decoded) {
    largest_weight = std::max(largest_weight, std::abs(static_cast<double>(weight)));
  }
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    std::vector<float> y(static_cast<size_t>(storage.rows), 0.5f);
    format.multiply(ops, storage, Tensor(x.data(), DType::f32, {1, storage.cols}),
                    Tensor(y.data(), DType::f32, {1, storage.rows}), accumulate, scratch);
    for (size_t r = 0; r < y.size(); ++r) {
      double sum = accumulate == Accumulate::yes ? 0.5 : 0.0;
      double magnitude = sum;
      double x_magnitude = 0.0;
      for (size_t c = 0; c < x.size(); ++c) {
        const double term =
            static_cast<double>(rounded[c]) * static_cast<double>(decoded[r * x.size() + c]);
        sum += term;
        magnitude += std::abs(term);
        x_magnitude += std::abs(static_cast<double>(rounded[c]));
      }
      EXPECT_NEAR(y[r], sum,
                  1e-6 * magnitude + rounding.weight_error * largest_weight * x_magnitude)
          << what << ", row " << r;
    }
  }
}

// Where x is not finite, no element of the product is; an x of nothing, or nearly, gives nothing.
inline void expect_product_keeps_what_is_not_finite(Ops& ops, const Format& format,
                                                    const Storage& storage) {
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
  const auto product = [&](float of_one, float of_all) {
    std::vector<float> x(static_cast<size_t>(storage.cols), of_all);
    x[x.size() / 2] = of_one;
    std::vector<float> y(static_cast<size_t>(storage.rows));
    format.multiply(ops, storage, Tensor(x.data(), DType::f32, {1, storage.cols}),
                    Tensor(y.data(), DType::f32, {1, storage.rows}), Accumulate::no, scratch);
    return y;
  };
  for (const float bad :
       {std::numeric_limits<float>::infinity(), -std::numeric_limits<float>::infinity(),
        std::numeric_limits<float>::quiet_NaN()}) {
    for (const float value : product(bad, 1.0f)) EXPECT_FALSE(std::isfinite(value)) << bad;
  }
  for (const float value : product(0.0f, 0.0f)) EXPECT_EQ(value, 0.0f);
  for (const float value : product(1e-38f, 1e-40f)) EXPECT_LE(std::abs(value), 1e-30f);
}

}  // namespace jackscrew
