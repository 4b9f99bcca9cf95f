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
#include "kernels/cpu/cpu_ops.h"
#include "kernels/ops.h"
#include "quant/format.h"
#include "tests/support/rounded_token.h"
#include "tests/support/test_ops.h"

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

// Bytes and decoded numbers are the same on every level of this machine and with any threads.
inline void expect_levels_and_threads_agree(Ops& ops, const Format& format,
                                            const std::vector<float>& values, int64_t rows) {
  const int64_t cols = div_exact(static_cast<int64_t>(values.size()), rows);
  StepScalars scalars{};
  for (const bool stochastic : {false, true}) {
    const Rounding rounding{stochastic, &scalars, 3};
    const auto bytes = encode(ops, format, values, rows, rounding);
    const Storage storage = storage_of(bytes, rows, cols);
    const auto all = decode(ops, format, storage, 0, rows);
    for (const IsaLevel level : {IsaLevel::v3, IsaLevel::v4}) {
      if (level > test_isa()) continue;
      for (const int threads : {1, 3}) {
        const auto others = make_cpu_ops(threads, level);
        EXPECT_EQ(encode(*others, format, values, rows, rounding), bytes);
        EXPECT_TRUE(same_bits(decode(*others, format, storage, 0, rows), all));
      }
    }
  }
}

// Parts of a matrix of 7 rows, in rows of another stride, lists of rows and bf16 have the numbers
// of the whole of it.
inline void expect_rows_are_cut_out_of_the_whole(Ops& ops, const Format& format,
                                                 const std::vector<float>& values, int64_t rows) {
  const int64_t cols = div_exact(static_cast<int64_t>(values.size()), rows);
  const auto bytes = encode(ops, format, values, rows);
  const Storage storage = storage_of(bytes, rows, cols);
  const auto whole = decode(ops, format, storage, 0, rows);
  for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{1, 5}, {0, 7}, {2, 3}, {6, 7}}) {
    const int64_t stride = cols + 5;
    std::vector<float> wide(static_cast<size_t>((end - begin) * stride), -1234.0f);
    format.decode(ops, storage, begin, end,
                  Tensor(wide.data(), DType::f32, {end - begin, stride}).columns(2, 2 + cols));
    for (size_t i = 0; i < wide.size(); ++i) {
      const int64_t r = static_cast<int64_t>(i) / stride;
      const int64_t c = static_cast<int64_t>(i) % stride - 2;
      const bool inside = c >= 0 && c < cols;
      const size_t at = static_cast<size_t>((begin + r) * cols + c);
      ASSERT_EQ(wide[i], inside ? whole[at] : -1234.0f) << r << ", " << c;
    }
  }
  std::vector<int32_t> indices = {6, 0, 3, 3};
  std::vector<float> picked(indices.size() * static_cast<size_t>(cols));
  format.gather(ops, storage, Tensor(indices.data(), DType::i32, {4}),
                Tensor(picked.data(), DType::f32, {4, cols}));
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto row = static_cast<size_t>(indices[i / static_cast<size_t>(cols)]);
    ASSERT_EQ(picked[i], whole[row * static_cast<size_t>(cols) + i % static_cast<size_t>(cols)]);
  }
  const auto as_bf16 = decode<bf16>(ops, format, storage, 0, rows);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(as_bf16[i].bits, to_bf16(whole[i]).bits);
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
