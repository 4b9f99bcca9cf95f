// Bytes of the int8 formats.
#include "quant/int8.h"

#include <gtest/gtest.h>

#include "quant/int8_affine.h"
#include "quant/int8_dynamic.h"

#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

float scale_at(const std::vector<uint8_t>& bytes, size_t at) {
  float scale = 0;
  std::memcpy(&scale, bytes.data() + at, sizeof scale);
  return scale;
}

TEST(Int8, LaysCodesBeforeScales) {
  const auto ops = make_test_ops();
  // Halves go to the even neighbour; the last block of a row is short.
  const std::vector<float> values = {127.0f, -0.5f,  1.5f,   -254.0f, 2.0f,  //
                                     0.0f,   -63.5f, 31.75f, 0.0f,    0.0f};
  const auto format = make_int8_format("int8", 3);
  const auto bytes = encode(*ops, *format, values, 2);
  ASSERT_EQ(bytes.size(), 64u + 4u * 4u);
  const std::vector<int8_t> codes(bytes.begin(), bytes.begin() + 10);
  EXPECT_EQ(codes, (std::vector<int8_t>{127, 0, 2, -127, 1, 0, -127, 64, 0, 0}));
  const float scales[] = {1.0f, 2.0f, 0.5f, 0.0f};
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(scale_at(bytes, 64 + 4 * i), scales[i]) << i;
  const auto decoded = decode(*ops, *format, storage_of(bytes, 2, 5), 0, 2);
  EXPECT_EQ(decoded, (std::vector<float>{127.0f, 0.0f, 2.0f, -254.0f, 2.0f,  //
                                         0.0f, -63.5f, 32.0f, 0.0f, 0.0f}));
}

TEST(Int8, RowsShowTheirCodesAndScales) {
  const auto ops = make_test_ops();
  const auto bytes = encode(*ops, int8_row_format(), {1, -2, 3, 0, 254, 2, -2, 127}, 2);
  const Int8Rows rows = int8_row_format().int8_rows(storage_of(bytes, 2, 4));
  ASSERT_EQ(rows.codes.describe(), "i8[2, 4]");
  ASSERT_EQ(rows.scales.describe(), "f32[2]");
  EXPECT_EQ(rows.scales.data<float>()[0], 3.0f / 127.0f);
  EXPECT_EQ(rows.scales.data<float>()[1], 2.0f);
  const auto* codes = rows.codes.data<int8_t>();
  EXPECT_EQ(std::vector<int8_t>(codes, codes + 8),
            (std::vector<int8_t>{42, -85, 127, 0, 127, 1, -1, 64}));
  // Two scales a row, or no codes at all: nothing to show.
  const auto wide = encode(*ops, int8_format(), std::vector<float>(300, 1.0f), 2);
  EXPECT_TRUE(int8_format().int8_rows(storage_of(wide, 2, 150)).codes.empty());
  EXPECT_TRUE(find_format("f32").int8_rows(storage_of(wide, 1, 8)).codes.empty());
}

TEST(Int8Affine, EncodesThePublishedVector) {
  const auto ops = make_test_ops();
  const auto bytes =
      encode(*ops, int8_affine_format(), {-.8f, -.3f, 0, .1f, .25f, .7f, 1, 1.2f}, 2);
  ASSERT_EQ(bytes.size(), 128u + 1u);
  const std::vector<uint8_t> codes(bytes.begin(), bytes.begin() + 8);
  EXPECT_EQ(codes, (std::vector<uint8_t>{0, 64, 102, 115, 134, 191, 230, 255}));
  EXPECT_FLOAT_EQ(scale_at(bytes, 64), 0.00784313725f);
  EXPECT_EQ(bytes[128], 102);
  const auto decoded = decode(*ops, int8_affine_format(), storage_of(bytes, 2, 4), 0, 2);
  const float expected[] = {-.8f, -.298039f, 0, .101961f, .250980f, .698039f, 1.003922f, 1.2f};
  for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(decoded[i], expected[i], 1e-6) << i;
}

// Where the range of the group's own values were coded, all of these would become 0.3.
TEST(Int8Affine, GroupsFarFromZeroAreNotCutOff) {
  const auto ops = make_test_ops();
  for (const float sign : {1.0f, -1.0f}) {
    const std::vector<float> values = {sign * .5f, sign * .6f, sign * .7f, sign * .8f};
    const auto bytes = encode(*ops, int8_affine_format(), values, 1);
    const auto decoded = decode(*ops, int8_affine_format(), storage_of(bytes, 1, 4), 0, 1);
    for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(decoded[i], values[i], 0.8 / 255 / 2 + 1e-7);
  }
}

TEST(Int8Dynamic, EncodesThePublishedVector) {
  const auto ops = make_test_ops();
  for (const int64_t block : {4, 128, 256}) {
    const auto format = make_int8_dynamic_format("int8_dynamic", block);
    // The second half alone has a largest magnitude of 1 too when its blocks are short.
    const float last = block == 4 ? -1.0f : 0.0f;
    const auto bytes =
        encode(*ops, *format, {.5f, -.25f, .1f, -1.0f, .003f, .75f, -.0625f, last}, 1);
    const std::vector<uint8_t> codes(bytes.begin(), bytes.begin() + 8);
    EXPECT_EQ(codes, (std::vector<uint8_t>{219, 53, 190, 0, 146, 237, 77,
                                           static_cast<uint8_t>(block == 4 ? 0 : 127)}));
    ASSERT_EQ(bytes.size(), 64u + (block == 4 ? 8u : 4u));
    EXPECT_EQ(scale_at(bytes, 64), 1.0f);
    const auto decoded = decode(*ops, *format, storage_of(bytes, 1, 8), 0, 1);
    const float expected[] = {0.500781f,   -0.247656f, 0.0985937f,  -0.992969f,
                              0.00296875f, 0.753906f,  -0.0620313f, block == 4 ? -0.992969f : 0};
    for (size_t i = 0; i < 8; ++i) EXPECT_NEAR(decoded[i], expected[i], 1e-6) << i;
  }
}

}  // namespace
}  // namespace jackscrew
