// Floats of eight bits, and the other formats of files whose values are products.
#include "quant/fp8.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "quant/int8_absmax.h"
#include "quant/nf4.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// A sign, an exponent of 4 bits about 7, 3 bits behind the point; subnormal below.
double e4m3(int code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  const double sign = code >= 128 ? -1.0 : 1.0;
  if ((code & 127) == 127) return std::numeric_limits<double>::quiet_NaN();
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -9) : std::ldexp(8 + mantissa, exponent - 10));
}

template <class T>
void put(std::vector<uint8_t>& bytes, size_t at, T value) {
  std::memcpy(bytes.data() + at, &value, sizeof value);
}

std::vector<float> expected_numbers(float scale, PackedScale type) {
  std::vector<float> out;
  for (int code = 0; code < 256; ++code) {
    const auto value = static_cast<float>(static_cast<double>(scale) * e4m3(code));
    out.push_back(type == PackedScale::f32    ? value
                  : type == PackedScale::bf16 ? to_float(to_bf16(value))
                                              : to_float(to_f16(value)));
  }
  return out;
}

// Every number, times scales that are a power of two, round their products, or make them subnormal.
TEST(Fp8, HasEveryNumber) {
  const auto ops = make_test_ops();
  for (const float scale : {1.0f, 0.7119140625f, -0x1.9p-6f, 0x1.8p-16f, 0x1.84p-121f}) {
    for (const auto type : {PackedScale::f32, PackedScale::bf16, PackedScale::f16}) {
      const FormatPointer format = make_fp8_format({type, 1, 256});
      std::vector<uint8_t> bytes(static_cast<size_t>(format->storage_bytes(1, 256)));
      for (size_t i = 0; i < 256; ++i) bytes[i] = static_cast<uint8_t>(i);
      float stored = scale;
      if (type == PackedScale::f32) {
        put(bytes, 256, scale);
      } else if (type == PackedScale::bf16) {
        put(bytes, 256, to_bf16(scale));
        stored = to_float(to_bf16(scale));
      } else {
        put(bytes, 256, to_f16(scale));
        stored = to_float(to_f16(scale));
      }
      auto found = decode(*ops, *format, storage_of(bytes, 1, 256), 0, 1);
      auto expected = expected_numbers(stored, type);
      for (const size_t nan : {size_t{127}, size_t{255}}) {
        EXPECT_TRUE(std::isnan(found[nan]));
        found[nan] = expected[nan] = 0.0f;
      }
      EXPECT_TRUE(same_bits(found, expected)) << scale;
    }
  }
}

struct Case {
  FormatPointer format;
  int64_t rows, cols;
};

// Rows of a list are those of a range, in bf16 too, and a single token's product is theirs.
TEST(Fp8, DecodesListsAndMultiplies) {
  const auto ops = make_test_ops();
  const std::vector<Case> cases = {{make_fp8_format({PackedScale::bf16, 3, 40}), 7, 101},
                                   {make_fp8_format({PackedScale::f16, 1, 101}), 7, 101},
                                   {make_fp8_format({PackedScale::f32, 7, 16}), 7, 101},
                                   {unowned(int8_absmax_format()), 7, 101},
                                   {unowned(bnb_fp4_format()), 7, 101},
                                   {unowned(bnb_fp4_double_format()), 7, 101}};
  for (const Case& one : cases) {
    SCOPED_TRACE(one.format->name());
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    std::vector<uint8_t> bytes(static_cast<size_t>(one.format->storage_bytes(one.rows, one.cols)));
    for (uint8_t& byte : bytes) byte = random() & 0x3B;  // no NaN, no infinite scale
    const Storage storage = storage_of(bytes, one.rows, one.cols);
    const auto all = decode(*ops, *one.format, storage, 0, one.rows);
    std::vector<int32_t> rows = {5, 0, 5};
    std::vector<bf16> picked(static_cast<size_t>(3 * one.cols));
    one.format->gather(*ops, storage, Tensor(rows.data(), DType::i32, {3}),
                       Tensor(picked.data(), DType::bf16, {3, one.cols}));
    std::vector<float> x(static_cast<size_t>(one.cols));
    for (float& value : x) value = normal(random);
    std::vector<float> y(static_cast<size_t>(one.rows), 1.0f);
    Memory memory("host", make_host_backing(), 0);
    Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
    one.format->multiply(*ops, storage, Tensor(x.data(), DType::f32, {1, one.cols}),
                         Tensor(y.data(), DType::f32, {1, one.rows}), Accumulate::yes, scratch);
    for (size_t row = 0; row < y.size(); ++row) {
      double sum = 1.0;
      double size = 1.0;
      for (size_t i = 0; i < x.size(); ++i) {
        const double product =
            static_cast<double>(x[i]) * static_cast<double>(all[row * x.size() + i]);
        sum += product;
        size += std::abs(product);
      }
      EXPECT_NEAR(static_cast<double>(y[row]), sum, 1e-6 * size);
    }
    for (size_t i = 0; i < picked.size(); ++i) {
      const size_t from = static_cast<size_t>(rows[i / x.size()]) * x.size() + i % x.size();
      ASSERT_EQ(picked[i].bits, to_bf16(all[from]).bits) << i;
    }
  }
}

TEST(Fp8, RefusesMatricesOfNothing) {
  EXPECT_THROW(make_fp8_format({})->storage_bytes(0, 4), Error);
  EXPECT_THROW(make_fp8_format({})->storage_bytes(4, -1), Error);
  const auto ops = make_test_ops();
  EXPECT_THROW(
      make_fp8_format({})->encode(*ops, {}, {}, {}, *std::make_unique<Arena>(Arena::measuring())),
      Error);
}

}  // namespace
}  // namespace jackscrew
