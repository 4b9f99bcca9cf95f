// Floating-point storage: f32, bf16, f16.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <vector>

#include "quant/plain.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// All magnitudes, both signs, zeros and infinities.
std::vector<float> sample_values(size_t count) {
  std::mt19937 random(7);
  std::vector<float> values(count);
  for (float& value : values) {
    do {
      value = bits_float(static_cast<uint32_t>(random()));
    } while (std::isnan(value));
  }
  values[0] = 0.0f;
  values[1] = -0.0f;
  values[2] = INFINITY;
  values[3] = -INFINITY;
  return values;
}

class PlainFormatTest : public ::testing::TestWithParam<const char*> {
 protected:
  float rounded(float value) const {
    if (&format_ == &bf16_format()) return to_float(to_bf16(value));
    if (&format_ == &f16_format()) return to_float(to_f16(value));
    return value;
  }
  const Format& format_ = find_format(GetParam());
  std::unique_ptr<Ops> ops_ = make_test_ops();
};

TEST_P(PlainFormatTest, EncodesToNearestAndDecodesExactly) {
  const std::vector<float> values = sample_values(5 * 67);
  const std::vector<uint8_t> storage = encode(*ops_, format_, values, 5);
  const auto decoded = decode(*ops_, format_, storage_of(storage, 5, 67), 0, 5);
  std::vector<float> expected;
  for (const float value : values) expected.push_back(rounded(value));
  EXPECT_EQ(bits_of(decoded), bits_of(expected));
  // What has been rounded once stays as it is.
  EXPECT_EQ(encode(*ops_, format_, decoded, 5), storage);

  const auto as_bf16 = decode<bf16>(*ops_, format_, storage_of(storage, 5, 67), 0, 5);
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(as_bf16[i].bits, to_bf16(expected[i]).bits) << i;
  }
}

TEST_P(PlainFormatTest, RowsAndRowListsAreCutOutOfTheWhole) {
  const std::vector<float> values = sample_values(6 * 41);
  const std::vector<uint8_t> bytes = encode(*ops_, format_, values, 6);
  const Storage storage = storage_of(bytes, 6, 41);
  const auto rows = decode(*ops_, format_, storage, 1, 4);
  for (size_t i = 0; i < rows.size(); ++i) ASSERT_EQ(rows[i], rounded(values[41 + i]));
  std::vector<int32_t> indices = {5, 0, 5};
  std::vector<float> picked(3 * 41);
  format_.gather(*ops_, storage, Tensor(indices.data(), DType::i32, {3}),
                 Tensor(picked.data(), DType::f32, {3, 41}));
  for (size_t i = 0; i < 3; ++i) {
    for (size_t c = 0; c < 41; ++c) {
      ASSERT_EQ(picked[i * 41 + c], rounded(values[static_cast<size_t>(indices[i]) * 41 + c]));
    }
  }
}

TEST_P(PlainFormatTest, EncodesInPanels) {
  const int64_t cols = 4097;
  const int64_t rows = encode_panel_rows(cols) + 3;
  std::vector<float> values = sample_values(static_cast<size_t>(rows * cols));
  const std::vector<uint8_t> storage = encode(*ops_, format_, values, rows);
  for (float& value : values) value = rounded(value);
  EXPECT_EQ(bits_of(decode(*ops_, format_, storage_of(storage, rows, cols), 0, rows)),
            bits_of(values));
}

TEST_P(PlainFormatTest, StochasticRoundingIsExpectedToBeExact) {
  constexpr size_t kCount = 1 << 16;
  StepScalars scalars{};
  scalars.seed = 5;
  const Rounding rounding{true, &scalars, 77};
  // Normal, negative, subnormal in f16, between 0 and the smallest f16, and exact in all formats.
  for (const float value : {1.00219f, -0.3371f, 1.7e-6f, -2.1e-8f, 0.0f, -1.5f, INFINITY}) {
    const std::vector<float> values(kCount, value);
    const auto storage = encode(*ops_, format_, values, 64, rounding);
    const auto decoded = decode(*ops_, format_, storage_of(storage, 64, 1024), 0, 64);
    const auto [low, high] = std::minmax_element(decoded.begin(), decoded.end());
    if (rounded(value) == value) {
      EXPECT_EQ(*low, value);
      EXPECT_EQ(*high, value);
      continue;
    }
    EXPECT_LT(*low, value);
    EXPECT_GT(*high, value);
    double sum = 0.0;
    for (const float v : decoded) {
      EXPECT_TRUE(v == *low || v == *high);
      sum += static_cast<double>(v);
    }
    const double gap = static_cast<double>(*high) - static_cast<double>(*low);
    const double share = (static_cast<double>(value) - static_cast<double>(*low)) / gap;
    const double deviation = gap * std::sqrt(share * (1.0 - share) / kCount);
    EXPECT_NEAR(sum / kCount, static_cast<double>(value), 5.0 * deviation) << value;
    // No value of the format lies between.
    EXPECT_EQ(rounded(*low + 0.4f * (*high - *low)), *low);
    EXPECT_EQ(rounded(*low + 0.6f * (*high - *low)), *high);
  }
}

TEST_P(PlainFormatTest, StochasticRoundingDependsOnItsKeyAlone) {
  const std::vector<float> values = sample_values(300 * 64);
  StepScalars scalars{};
  scalars.seed = 5;
  const auto once = encode(*ops_, format_, values, 300, {true, &scalars, 77});
  EXPECT_EQ(encode(*make_cpu_ops(1, IsaLevel::v3), format_, values, 300, {true, &scalars, 77}),
            once);
  EXPECT_EQ(encode(*ops_, format_, values, 75, {true, &scalars, 77}), once);  // other rows
  if (&format_ == &f32_format()) return;
  EXPECT_NE(encode(*ops_, format_, values, 300, {true, &scalars, 78}), once);
  scalars.step = 1;
  EXPECT_NE(encode(*ops_, format_, values, 300, {true, &scalars, 77}), once);
}

INSTANTIATE_TEST_SUITE_P(Formats, PlainFormatTest, ::testing::Values("f32", "bf16", "f16"),
                         [](const auto& param_info) { return std::string(param_info.param); });

// Every code but NaN survives decoding and encoding, subnormals included.
template <typename Half>
void expect_codes_survive(const Format& format, uint16_t largest_exponent) {
  std::vector<Half> codes;
  for (uint32_t code = 0; code < 65536; ++code) {
    const bool nan = (code & 0x7FFFu) > largest_exponent;
    codes.push_back(Half{static_cast<uint16_t>(nan ? 0 : code)});
  }
  const auto ops = make_test_ops();
  std::vector<uint8_t> storage(codes.size() * 2);
  std::memcpy(storage.data(), codes.data(), storage.size());
  const auto values = decode(*ops, format, storage_of(storage, 64, 1024), 0, 64);
  EXPECT_EQ(encode(*ops, format, values, 64), storage);
}

TEST(PlainFormat, EveryBf16Survives) {
  expect_codes_survive<bf16>(bf16_format(), 0x7F80);
}
TEST(PlainFormat, EveryF16Survives) {
  expect_codes_survive<f16>(f16_format(), 0x7C00);
}

// As bf16, bf16 storage is handed out as it lies there: the bits of a NaN stay too.
TEST(PlainFormat, Bf16AsBf16IsACopy) {
  std::vector<uint16_t> codes(65536);
  std::iota(codes.begin(), codes.end(), uint16_t{0});
  std::vector<uint8_t> storage(codes.size() * 2);
  std::memcpy(storage.data(), codes.data(), storage.size());
  const auto ops = make_test_ops();
  const auto read = decode<bf16>(*ops, bf16_format(), storage_of(storage, 64, 1024), 0, 64);
  for (size_t code = 0; code < codes.size(); ++code) ASSERT_EQ(read[code].bits, codes[code]);
}

TEST(PlainFormat, ConvertsStridedRowsToBf16) {
  const auto ops = make_test_ops();
  std::vector<float> from = sample_values(3 * 20);
  std::vector<bf16> to(3 * 24, bf16{0x1234});
  convert_to_bf16(*ops, Tensor(from.data(), DType::f32, {3, 20}).columns(1, 18),
                  Tensor(to.data(), DType::bf16, {3, 24}).columns(4, 21));
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 24; ++c) {
      const bool inside = c >= 4 && c < 21;
      const uint16_t expected = inside ? to_bf16(from[r * 20 + c - 3]).bits : uint16_t{0x1234};
      ASSERT_EQ(to[r * 24 + c].bits, expected) << r << ", " << c;
    }
  }
}

}  // namespace
}  // namespace jackscrew
