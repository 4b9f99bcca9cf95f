// Bytes of the nf4 formats.
#include "quant/nf4.h"

#include <gtest/gtest.h>

#include <random>

#include "quant/dynamic_map.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

float float_at(const std::vector<uint8_t>& bytes, size_t at) {
  float value = 0;
  std::memcpy(&value, bytes.data() + at, sizeof value);
  return value;
}

TEST(Nf4, EncodesThePublishedVector) {
  const auto ops = make_test_ops();
  const std::vector<float> values = {.5f, -.25f, .1f, -1, .003f, .75f, -.0625f, 0};
  const auto bytes = encode(*ops, nf4_format(), values, 1);
  ASSERT_EQ(bytes.size(), 64u + 4u);
  EXPECT_EQ(std::vector<uint8_t>(bytes.begin(), bytes.begin() + 4),
            (std::vector<uint8_t>{0xc4, 0x80, 0x7e, 0x67}));
  EXPECT_EQ(float_at(bytes, 64), 1.0f);
  const auto decoded = decode(*ops, nf4_format(), storage_of(bytes, 1, 8), 0, 1);
  const int codes[] = {12, 4, 8, 0, 7, 14, 6, 7};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(decoded[i], nf4_values()[static_cast<size_t>(codes[i])]);
}

// An odd last element shares its byte with the code of 0.
TEST(Nf4, PadsAnOddTail) {
  const auto ops = make_test_ops();
  const auto bytes = encode(*ops, nf4_format(), {-2, 1, 2}, 3);
  EXPECT_EQ(bytes[0], 0x0c);
  EXPECT_EQ(bytes[1], 0xf7);
}

// The parts of nf4_double, and that its codes are those of nf4.
TEST(Nf4, CodesTheScalesOnceMore) {
  const auto ops = make_test_ops();
  const int64_t rows = 257;
  const int64_t cols = 100;  // 25700 elements in 402 blocks in 2 nested blocks
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& value : values) value = normal(random);
  const auto single = encode(*ops, nf4_format(), values, rows);
  const auto nested = encode(*ops, nf4_double_format(), values, rows);
  const size_t absmax_at = 12864;        // 12850 rounded up
  const size_t nested_at = 12864 + 448;  // 402 rounded up
  const size_t offset_at = nested_at + 64;
  ASSERT_EQ(single.size(), absmax_at + 402 * 4);
  ASSERT_EQ(nested.size(), offset_at + 4);
  EXPECT_TRUE(std::equal(single.begin(), single.begin() + 12850, nested.begin()));
  double mean = 0.0;
  for (size_t i = 0; i < 402; ++i) mean += static_cast<double>(float_at(single, absmax_at + 4 * i));
  EXPECT_FLOAT_EQ(float_at(nested, offset_at), static_cast<float>(mean / 402.0));
  const auto decoded = decode(*ops, nf4_double_format(), storage_of(nested, rows, cols), 0, rows);
  for (size_t block = 0; block < 402; ++block) {
    const float scale = float_at(nested, nested_at + block / 256 * 4);
    const float absmax = signed_dynamic_map().values[nested[absmax_at + block]] * scale +
                         float_at(nested, offset_at);
    // Within half of the widest gap of the map.
    EXPECT_NEAR(absmax, float_at(single, absmax_at + 4 * block), 0.00704f * scale) << block;
    const uint8_t code = nested[block * 32] >> 4;
    EXPECT_FLOAT_EQ(decoded[block * 64], nf4_values()[code] * absmax);
  }
}

}  // namespace
}  // namespace jackscrew
