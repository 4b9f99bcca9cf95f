// Blocks of the formats with grids, put together by hand. Of the grids some entries are known from
// ggml; all of them are in the golden sums of block_format_test.cc.
#include <gtest/gtest.h>

#include <vector>

#include "tests/quant/block_values.h"

namespace jackscrew {
namespace {

// Eight or four numbers of `values` from element `to` on, times `scale`.
void put_numbers(std::vector<float>& expected, size_t to, float scale,
                 const std::vector<float>& values) {
  for (size_t i = 0; i < values.size(); ++i) expected[to + i] = scale * values[i];
}

std::vector<float> all(size_t count, float value) {
  return std::vector<float>(count, value);
}

TEST(BlockValues, IQ2_XXS) {
  std::vector<uint8_t> block(66, 0);
  put_f16(block, 0, 2.0f);
  std::vector<float> expected(256, 2.0f * 0.5f / 4.0f * 8.0f);
  // Group 3: a scale of 15; the last entry with minuses at 0 and 1, and at the eighth none; the
  // next with one at 6, and therefore at 7.
  block[2 + 3 * 8] = 255;
  block[2 + 3 * 8 + 1] = 1;
  const uint32_t word = 15u << 28 | 0x40u << 7 | 0x03u;
  for (size_t i = 0; i < 4; ++i) block[6 + 3 * 8 + i] = static_cast<uint8_t>(word >> 8 * i);
  const float scale = 2.0f * 15.5f / 4.0f;
  put_numbers(expected, 96, scale, {-8, -25, 8, 8, 25, 43, 43, 43});
  put_numbers(expected, 104, scale, {43, 8, 8, 8, 8, 8, -8, -8});
  put_numbers(expected, 112, scale, all(16, 8));
  EXPECT_EQ(decode_block("iq2_xxs", block), expected);
}

TEST(BlockValues, IQ2_XS) {
  std::vector<uint8_t> block(74, 0);
  put_f16(block, 0, 2.0f);
  std::vector<float> expected(256, 2.0f * 0.5f / 4.0f * 8.0f);
  // Elements 112 to 127: a scale of 15, the entries 510 and 511, and a minus at 1 of the second.
  block[66 + 3] = 0xF0;
  block[2 + 28] = 0xFE;
  block[2 + 29] = 0x01;
  block[2 + 30] = 0xFF;
  block[2 + 31] = 0x05;
  const float scale = 2.0f * 15.5f / 4.0f;
  put_numbers(expected, 112, scale, {25, 8, 25, 43, 43, 43, 43, 43});
  put_numbers(expected, 120, scale, {43, -43, 43, 43, 43, 43, 43, -43});
  EXPECT_EQ(decode_block("iq2_xs", block), expected);
}

TEST(BlockValues, IQ2_S) {
  std::vector<uint8_t> block(82, 0);
  put_f16(block, 0, 2.0f);
  std::vector<float> expected(256, 2.0f * 0.5f / 4.0f * 8.0f);
  // Elements 112 to 127: a scale of 15, the entries 512 and 1022; of the signs the first is minus.
  block[2 + 15] = 0xFE;
  block[66 + 3] = 0xE0;
  block[34 + 14] = 0x01;
  block[74 + 3] = 0xF0;
  const float scale = 2.0f * 15.5f / 4.0f;
  put_numbers(expected, 112, scale, {-25, 25, 43, 8, 25, 8, 8, 25});
  put_numbers(expected, 120, scale, {8, 43, 8, 43, 43, 43, 43, 43});
  EXPECT_EQ(decode_block("iq2_s", block), expected);
}

TEST(BlockValues, IQ3_XXS) {
  std::vector<uint8_t> block(98, 0);
  put_f16(block, 0, 2.0f);
  std::vector<float> expected(256, 2.0f * 0.5f / 2.0f * 4.0f);
  // Group 3: a scale of 15; entry 255 at elements 4 to 7; a minus at element 9, so at 15.
  block[2 + 3 * 8 + 1] = 255;
  const uint32_t word = 15u << 28 | 0x02u << 7;
  for (size_t i = 0; i < 4; ++i) block[66 + 3 * 4 + i] = static_cast<uint8_t>(word >> 8 * i);
  const float scale = 2.0f * 15.5f / 2.0f;
  put_numbers(expected, 96, scale, all(32, 4));
  put_numbers(expected, 100, scale, {4, 28, 52, 62, 4, -4, 4, 4, 4, 4, 4, -4});
  EXPECT_EQ(decode_block("iq3_xxs", block), expected);
}

TEST(BlockValues, IQ3_S) {
  std::vector<uint8_t> block(110, 0);
  put_f16(block, 0, 2.0f);
  std::vector<float> expected(256, 2.0f);
  // Group 3: a scale of 15; entry 256 at elements 4 to 7, 511 at 28 to 31, whose last is minus.
  block[2 + 3 * 8 + 7] = 255;
  block[66 + 3] = 0x82;
  block[74 + 3 * 4 + 3] = 0x80;
  block[106 + 1] = 0xF0;
  const float scale = 2.0f * 31.0f;
  put_numbers(expected, 96, scale, all(32, 1));
  put_numbers(expected, 100, scale, {7, 5, 9, 5});
  put_numbers(expected, 124, scale, {1, 1, 15, -15});
  EXPECT_EQ(decode_block("iq3_s", block), expected);
}

TEST(BlockValues, IQ1_S) {
  std::vector<uint8_t> block(50, 0);
  put_f16(block, 0, 2.0f);
  std::vector<float> expected(256, 2.0f * -0.875f);
  // Group 3: a scale of 7, moved down; the entries 0, 1024, 1 and 2047.
  block[2 + 3 * 4 + 2] = 1;
  block[2 + 3 * 4 + 3] = 255;
  const uint32_t word = 0x8000u | 7u << 12 | 7u << 9 | 4u << 3;
  block[34 + 6] = static_cast<uint8_t>(word & 255);
  block[34 + 7] = static_cast<uint8_t>(word >> 8);
  const float scale = 2.0f * 15.0f;
  put_numbers(expected, 96, scale, all(32, -1.125f));
  put_numbers(expected, 104, scale,
              {-0.125f, 0.875f, -1.125f, -0.125f, -0.125f, -0.125f, -0.125f, -0.125f});
  put_numbers(expected, 112, scale, {0.875f});
  put_numbers(expected, 120, scale, all(8, 0.875f));
  EXPECT_EQ(decode_block("iq1_s", block), expected);
}

TEST(BlockValues, IQ1_M) {
  std::vector<uint8_t> block(56, 0);
  // 1.5 is 0x3E00.
  block[49] = 0x00;
  block[51] = 0x00;
  block[53] = 0xE0;
  block[55] = 0x30;
  std::vector<float> expected(256, 1.5f * -0.875f);
  // Elements 80 to 95: the second scale of the second word is 7; the entries 1, moved up, and 2047,
  // moved down.
  block[50] = 7 << 3;
  block[10] = 1;
  block[11] = 255;
  block[32 + 5] = 0xF0;
  const float scale = 1.5f * 15.0f;
  put_numbers(expected, 80, scale, all(8, -0.875f));
  put_numbers(expected, 80, scale, {1.125f});
  put_numbers(expected, 88, scale, all(8, 0.875f));
  EXPECT_EQ(decode_block("iq1_m", block), expected);
}

}  // namespace
}  // namespace jackscrew
