// Blocks put together by hand from the descriptions of the formats, with values known beforehand.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/half.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

void put_f16(std::vector<uint8_t>& block, size_t at, float value) {
  const f16 half = to_f16(value);
  block[at] = static_cast<uint8_t>(half.bits & 0xFF);
  block[at + 1] = static_cast<uint8_t>(half.bits >> 8);
}

std::vector<float> decode_block(const char* name, const std::vector<uint8_t>& block) {
  const Format& format = find_format(name);
  const int64_t elements = std::string(name).ends_with("_k") ? 256 : 32;
  EXPECT_EQ(static_cast<int64_t>(block.size()), format.row_bytes(elements));
  const auto ops = make_test_ops();
  return decode(*ops, format, storage_of(block, 1, elements), 0, 1);
}

TEST(BlockValues, Q8_0) {
  std::vector<uint8_t> block(34, 0);
  put_f16(block, 0, 0.5f);
  block[2] = 0x80;
  block[3] = 0x7F;
  block[33] = 0xFF;
  std::vector<float> expected(32, 0.0f);
  expected[0] = -64.0f;
  expected[1] = 63.5f;
  expected[31] = -0.5f;
  EXPECT_EQ(decode_block("q8_0", block), expected);
}

TEST(BlockValues, Q4_0) {
  std::vector<uint8_t> block(18, 0x88);
  put_f16(block, 0, -2.0f);
  block[2] = 0xF0;
  block[17] = 0x79;
  std::vector<float> expected(32, 0.0f);
  expected[0] = 16.0f;
  expected[16] = -14.0f;
  expected[15] = -2.0f;
  expected[31] = 2.0f;
  EXPECT_EQ(decode_block("q4_0", block), expected);
}

TEST(BlockValues, Q4_1) {
  std::vector<uint8_t> block(20, 0);
  put_f16(block, 0, 2.0f);
  put_f16(block, 2, -1.0f);
  block[4] = 0xF0;
  block[19] = 0x21;
  std::vector<float> expected(32, -1.0f);
  expected[16] = 29.0f;
  expected[15] = 1.0f;
  expected[31] = 3.0f;
  EXPECT_EQ(decode_block("q4_1", block), expected);
}

TEST(BlockValues, Q5_0) {
  std::vector<uint8_t> block(22, 0);
  put_f16(block, 0, 1.0f);
  block[2] = 0x01;  // the fifth bit of element 0
  block[4] = 0x02;  // of element 17
  block[5] = 0x80;  // of element 31
  block[6] = 0x0F;
  block[21] = 0x10;
  std::vector<float> expected(32, -16.0f);
  expected[0] = 15.0f;
  expected[17] = 0.0f;
  expected[31] = 1.0f;
  EXPECT_EQ(decode_block("q5_0", block), expected);
}

TEST(BlockValues, Q5_1) {
  std::vector<uint8_t> block(24, 0);
  put_f16(block, 0, 1.0f);
  put_f16(block, 2, 0.25f);
  block[4] = 0x01;
  block[6] = 0x02;
  block[7] = 0x80;
  block[8] = 0x0F;
  block[23] = 0x10;
  std::vector<float> expected(32, 0.25f);
  expected[0] = 31.25f;
  expected[17] = 16.25f;
  expected[31] = 17.25f;
  EXPECT_EQ(decode_block("q5_1", block), expected);
}

TEST(BlockValues, Q4_K) {
  const std::vector<int> scales = {1, 63, 32, 7, 48, 15, 33, 62};
  const std::vector<int> minima = {63, 0, 5, 31, 16, 47, 1, 50};
  std::vector<uint8_t> block(144, 0);
  put_f16(block, 0, 0.25f);
  put_f16(block, 2, -2.0f);
  for (size_t j = 0; j < 4; ++j) {
    block[4 + j] = static_cast<uint8_t>(scales[j] | (scales[j + 4] >> 4) << 6);
    block[8 + j] = static_cast<uint8_t>(minima[j] | (minima[j + 4] >> 4) << 6);
    block[12 + j] = static_cast<uint8_t>((scales[j + 4] & 15) | (minima[j + 4] & 15) << 4);
  }
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const size_t group = e / 32;
    const int q = static_cast<int>(e * 5 % 16);
    block[16 + group / 2 * 32 + e % 32] |= static_cast<uint8_t>(q << (group % 2 * 4));
    expected[e] =
        static_cast<float>(scales[group] * q) * 0.25f + static_cast<float>(minima[group]) * 2.0f;
  }
  EXPECT_EQ(decode_block("q4_k", block), expected);
}

TEST(BlockValues, Q6_K) {
  std::vector<uint8_t> block(210, 0);
  put_f16(block, 208, 0.5f);
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const int scale = static_cast<int>(e / 16) * 17 - 128;  // -128 ... 127
    const int q = static_cast<int>(e * 7 % 64);
    const size_t half = e / 128;
    const size_t quarter = e % 128 / 32;
    block[half * 64 + quarter % 2 * 32 + e % 32] |=
        static_cast<uint8_t>((q & 15) << (quarter / 2 * 4));
    block[128 + half * 32 + e % 32] |= static_cast<uint8_t>((q >> 4) << (quarter * 2));
    block[192 + e / 16] = static_cast<uint8_t>(scale);
    expected[e] = 0.5f * static_cast<float>(scale * (q - 32));
  }
  EXPECT_EQ(decode_block("q6_k", block), expected);
}

}  // namespace
}  // namespace jackscrew
