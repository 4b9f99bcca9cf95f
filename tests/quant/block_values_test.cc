// Blocks put together by hand from the descriptions of the formats, with values known beforehand.
#include <gtest/gtest.h>

#include <vector>

#include "tests/quant/block_values.h"

namespace jackscrew {
namespace {

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

// The scales and minima of Q4_K and Q5_K.
const std::vector<int> kScales = {1, 63, 32, 7, 48, 15, 33, 62};
const std::vector<int> kMinima = {63, 0, 5, 31, 16, 47, 1, 50};

void put_k_scales(std::vector<uint8_t>& block) {
  for (size_t j = 0; j < 4; ++j) {
    block[4 + j] = static_cast<uint8_t>(kScales[j] | (kScales[j + 4] >> 4) << 6);
    block[8 + j] = static_cast<uint8_t>(kMinima[j] | (kMinima[j + 4] >> 4) << 6);
    block[12 + j] = static_cast<uint8_t>((kScales[j + 4] & 15) | (kMinima[j + 4] & 15) << 4);
  }
}

TEST(BlockValues, Q4_K) {
  std::vector<uint8_t> block(144, 0);
  put_f16(block, 0, 0.25f);
  put_f16(block, 2, -2.0f);
  put_k_scales(block);
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const size_t group = e / 32;
    const int q = static_cast<int>((e * 5 + group * 3) % 16);
    put_bits(block, 16 + group / 2 * 32 + e % 32, group % 2 * 4, q);
    expected[e] =
        static_cast<float>(kScales[group] * q) * 0.25f + static_cast<float>(kMinima[group]) * 2.0f;
  }
  EXPECT_EQ(decode_block("q4_k", block), expected);
}

TEST(BlockValues, Q5_K) {
  std::vector<uint8_t> block(176, 0);
  put_f16(block, 0, 0.25f);
  put_f16(block, 2, -2.0f);
  put_k_scales(block);
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const size_t group = e / 32;
    const int q = static_cast<int>((e * 7 + group * 5) % 32);
    put_bits(block, 48 + group / 2 * 32 + e % 32, group % 2 * 4, q & 15);
    put_bits(block, 16 + e % 32, group, q >> 4);
    expected[e] =
        static_cast<float>(kScales[group] * q) * 0.25f + static_cast<float>(kMinima[group]) * 2.0f;
  }
  EXPECT_EQ(decode_block("q5_k", block), expected);
}

TEST(BlockValues, Q2_K) {
  std::vector<uint8_t> block(84, 0);
  put_f16(block, 80, 0.5f);
  put_f16(block, 82, -0.25f);
  for (size_t group = 0; group < 16; ++group) {
    block[group] = static_cast<uint8_t>(group | (15 - group) << 4);
  }
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const int q = static_cast<int>((e * 3 + e / 16) % 4);
    put_bits(block, 16 + e / 128 * 32 + e % 32, e % 128 / 32 * 2, q);
    const int group = static_cast<int>(e / 16);
    expected[e] = 0.5f * static_cast<float>(group * q) + 0.25f * static_cast<float>(15 - group);
  }
  EXPECT_EQ(decode_block("q2_k", block), expected);
}

TEST(BlockValues, Q3_K) {
  std::vector<uint8_t> block(110, 0);
  put_f16(block, 108, 0.25f);
  const auto scale = [](size_t group) { return static_cast<int>(group * 21 % 64); };
  for (size_t group = 0; group < 16; ++group) {
    put_bits(block, 96 + group % 8, group / 8 * 4, scale(group) & 15);
    put_bits(block, 104 + group % 4, group / 4 * 2, scale(group) >> 4);
  }
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const int q = static_cast<int>((e * 5 + e / 32) % 8);
    put_bits(block, 32 + e / 128 * 32 + e % 32, e % 128 / 32 * 2, q & 3);
    put_bits(block, e % 32, e / 32, q >> 2);
    expected[e] = 0.25f * static_cast<float>((scale(e / 16) - 32) * (q - 4));
  }
  EXPECT_EQ(decode_block("q3_k", block), expected);
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
    put_bits(block, half * 64 + quarter % 2 * 32 + e % 32, quarter / 2 * 4, q & 15);
    put_bits(block, 128 + half * 32 + e % 32, quarter * 2, q >> 4);
    block[192 + e / 16] = static_cast<uint8_t>(scale);
    expected[e] = 0.5f * static_cast<float>(scale * (q - 32));
  }
  EXPECT_EQ(decode_block("q6_k", block), expected);
}

TEST(BlockValues, TQ1_0) {
  std::vector<uint8_t> block(54, 0);
  put_f16(block, 52, 0.5f);
  std::vector<float> expected(256);
  // Digits of base three, the first the highest, as a fraction of 256 that is rounded up.
  const auto put = [&](size_t at, const std::vector<size_t>& elements) {
    int fraction = 0;
    for (size_t digit = 0; digit < 5; ++digit) {
      const bool there = digit < elements.size();
      const int number = there ? static_cast<int>(elements[digit] * 7 % 3) : 0;
      fraction = fraction * 3 + number;
      if (there) expected[elements[digit]] = 0.5f * static_cast<float>(number - 1);
    }
    block[at] = static_cast<uint8_t>((fraction * 256 + 242) / 243);
  };
  for (size_t i = 0; i < 32; ++i) put(i, {i, i + 32, i + 64, i + 96, i + 128});
  for (size_t i = 0; i < 16; ++i) put(32 + i, {i + 160, i + 176, i + 192, i + 208, i + 224});
  for (size_t i = 0; i < 4; ++i) put(48 + i, {i + 240, i + 244, i + 248, i + 252});
  EXPECT_EQ(decode_block("tq1_0", block), expected);
}

TEST(BlockValues, TQ2_0) {
  std::vector<uint8_t> block(66, 0);
  put_f16(block, 64, -3.0f);
  std::vector<float> expected(256);
  for (size_t e = 0; e < 256; ++e) {
    const int q = static_cast<int>((e * 3 + e / 16) % 4);
    put_bits(block, e / 128 * 32 + e % 32, e % 128 / 32 * 2, q);
    expected[e] = -3.0f * static_cast<float>(q - 1);
  }
  EXPECT_EQ(decode_block("tq2_0", block), expected);
}

TEST(BlockValues, IQ4_NL) {
  std::vector<uint8_t> block(18, 0x88);
  put_f16(block, 0, 2.0f);
  block[2] = 0xF0;
  block[17] = 0x79;
  std::vector<float> expected(32, 2.0f);
  expected[0] = -254.0f;
  expected[16] = 226.0f;
  expected[15] = 26.0f;
  expected[31] = -20.0f;
  EXPECT_EQ(decode_block("iq4_nl", block), expected);
}

TEST(BlockValues, IQ4_XS) {
  std::vector<uint8_t> block(136, 0x88);
  put_f16(block, 0, 0.5f);
  for (size_t at = 2; at < 8; ++at) block[at] = 0;
  std::vector<float> expected(256);
  for (size_t group = 0; group < 8; ++group) {
    const int scale = static_cast<int>(group * 27 % 64);
    put_bits(block, 4 + group / 2, group % 2 * 4, scale & 15);
    put_bits(block, 2 + group / 4, group % 4 * 2, scale >> 4);
    block[8 + group * 16] = 0xF0;
    const float factor = 0.5f * static_cast<float>(scale - 32);
    for (size_t i = 0; i < 32; ++i) expected[group * 32 + i] = factor;
    expected[group * 32] = factor * -127.0f;
    expected[group * 32 + 16] = factor * 113.0f;
  }
  EXPECT_EQ(decode_block("iq4_xs", block), expected);
}

// Twice what E2M1 means.
const std::vector<float> kFp4 = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

TEST(BlockValues, MXFP4) {
  struct Scale {
    uint8_t exponent;
    float value;
  };
  for (const Scale& scale : {Scale{128, 1.0f}, Scale{131, 8.0f}, Scale{2, 0x1p-126f},
                             Scale{1, 0x1p-127f}, Scale{0, 0x1p-128f}, Scale{254, 0x1p126f}}) {
    std::vector<uint8_t> block(17, 0);
    block[0] = scale.exponent;
    std::vector<float> expected(32);
    for (size_t e = 0; e < 32; ++e) {
      const size_t code = (e * 3 + e / 16) % 16;
      put_bits(block, 1 + e % 16, e / 16 * 4, static_cast<int>(code));
      expected[e] = scale.value * kFp4[code];
    }
    EXPECT_EQ(decode_block("mxfp4", block), expected) << scale.value;
  }
}

TEST(BlockValues, NVFP4) {
  std::vector<uint8_t> block(36, 0);
  // 1, 2^-9, NaN and, with a sign that does not count, 480: halves of them.
  block[0] = 0x38;
  block[1] = 0x01;
  block[2] = 0x7F;
  block[3] = 0xFF;
  const std::vector<float> scales = {0.5f, 0x1p-10f, 0.0f, 240.0f};
  std::vector<float> expected(64);
  for (size_t e = 0; e < 64; ++e) {
    const size_t code = (e * 3 + e / 16) % 16;
    put_bits(block, 4 + e / 16 * 8 + e % 8, e % 16 / 8 * 4, static_cast<int>(code));
    expected[e] = scales[e / 16] * kFp4[code];
  }
  EXPECT_EQ(decode_block("nvfp4", block), expected);
}

}  // namespace
}  // namespace jackscrew
