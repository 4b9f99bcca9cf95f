// What the tests of storage formats share.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/ops.h"
#include "quant/format.h"

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
  Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
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
// decoded numbers' products to f32's rounding.
inline void expect_product_of_a_token(Ops& ops, const Format& format, const Storage& storage,
                                      const std::vector<float>& decoded, std::vector<float> x,
                                      const std::string& what) {
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 0);
  for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
    std::vector<float> y(static_cast<size_t>(storage.rows), 0.5f);
    format.multiply(ops, storage, Tensor(x.data(), DType::f32, {1, storage.cols}),
                    Tensor(y.data(), DType::f32, {1, storage.rows}), accumulate, scratch);
    for (size_t r = 0; r < y.size(); ++r) {
      double sum = accumulate == Accumulate::yes ? 0.5 : 0.0;
      double magnitude = sum;
      for (size_t c = 0; c < x.size(); ++c) {
        const double term =
            static_cast<double>(x[c]) * static_cast<double>(decoded[r * x.size() + c]);
        sum += term;
        magnitude += std::abs(term);
      }
      EXPECT_NEAR(y[r], sum, 1e-6 * magnitude) << what << ", row " << r;
    }
  }
}

}  // namespace jackscrew
