// Floating-point storage: f32, bf16, f16.
#include <gtest/gtest.h>

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

std::vector<uint8_t> encode(Ops& ops, const Format& format, std::vector<float> values,
                            int64_t rows) {
  const int64_t cols = div_exact(static_cast<int64_t>(values.size()), rows);
  std::vector<uint8_t> storage(static_cast<size_t>(rows * format.row_bytes(cols)));
  format.encode_rows(ops, Tensor(values.data(), DType::f32, {rows, cols}),
                     storage_tensor(storage, rows), 0);
  return storage;
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
  const auto decoded = decode_tile(*ops_, format_, storage_tensor(storage, 5), {0, 5, 0, 67});
  std::vector<float> expected;
  for (const float value : values) expected.push_back(rounded(value));
  EXPECT_EQ(bits_of(decoded), bits_of(expected));
  // What has been rounded once stays as it is.
  EXPECT_EQ(encode(*ops_, format_, decoded, 5), storage);

  const auto as_bf16 = decode_tile<bf16>(*ops_, format_, storage_tensor(storage, 5), {0, 5, 0, 67});
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(as_bf16[i].bits, to_bf16(expected[i]).bits) << i;
  }
}

TEST_P(PlainFormatTest, TilesAndRowListsAreCutOutOfTheWhole) {
  const std::vector<float> values = sample_values(6 * 41);
  const std::vector<uint8_t> bytes = encode(*ops_, format_, values, 6);
  const Tensor storage = storage_tensor(bytes, 6);
  const auto tile = decode_tile(*ops_, format_, storage, {1, 4, 5, 38});
  for (size_t r = 0; r < 3; ++r) {
    for (size_t c = 0; c < 33; ++c) {
      ASSERT_EQ(tile[r * 33 + c], rounded(values[(r + 1) * 41 + c + 5]));
    }
  }
  std::vector<int32_t> indices = {5, 0, 5};
  std::vector<float> picked(3 * 41);
  format_.decode_rows(*ops_, storage, Tensor(indices.data(), DType::i32, {3}),
                      Tensor(picked.data(), DType::f32, {3, 41}));
  for (size_t i = 0; i < 3; ++i) {
    for (size_t c = 0; c < 41; ++c) {
      ASSERT_EQ(picked[i * 41 + c], rounded(values[static_cast<size_t>(indices[i]) * 41 + c]));
    }
  }
}

TEST_P(PlainFormatTest, EncodesRowsWhereTheyBelong) {
  std::vector<float> values = sample_values(2 * 16);
  std::vector<uint8_t> storage(static_cast<size_t>(4 * format_.row_bytes(12)), 0);
  // Columns [2, 14) of a wider matrix, into rows 1 and 2.
  format_.encode_rows(*ops_, Tensor(values.data(), DType::f32, {2, 16}).columns(2, 14),
                      storage_tensor(storage, 4), 1);
  const auto decoded = decode_tile(*ops_, format_, storage_tensor(storage, 4), {0, 4, 0, 12});
  for (size_t r = 0; r < 4; ++r) {
    for (size_t c = 0; c < 12; ++c) {
      const bool written = r == 1 || r == 2;
      ASSERT_EQ(decoded[r * 12 + c], written ? rounded(values[(r - 1) * 16 + c + 2]) : 0.0f);
    }
  }
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
  const auto values = decode_tile(*ops, format, storage_tensor(storage, 64), {0, 64, 0, 1024});
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
  const auto read =
      decode_tile<bf16>(*ops, bf16_format(), storage_tensor(storage, 64), {0, 64, 0, 1024});
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
