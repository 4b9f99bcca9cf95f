// Rows as files keep them: what comes back when they are decoded.
#include "quant/row_encoders.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <string>

#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

constexpr int64_t kCols = 512;

std::vector<float> decoded(const RowEncoder& encoder, const std::vector<float>& row) {
  const auto cols = static_cast<int64_t>(row.size());
  std::vector<uint8_t> bytes(static_cast<size_t>(encoder.format->row_bytes(cols)), 0xA5);
  encoder.encode(row.data(), cols, bytes.data());
  const auto ops = make_test_ops();
  return decode(*ops, *encoder.format, storage_of(bytes, 1, cols), 0, 1);
}

double square_sum(const std::vector<float>& values) {
  double sum = 0.0;
  for (const float x : values) sum += static_cast<double>(x) * static_cast<double>(x);
  return sum;
}

double relative_rms(const std::vector<float>& found, std::vector<float> row) {
  const double whole = square_sum(row);
  for (size_t i = 0; i < row.size(); ++i) row[i] -= found[i];
  return std::sqrt(square_sum(row) / whole);
}

// Of normal numbers: a little above what each has; a wrong bit anywhere is far more.
TEST(RowEncoders, LoseWhatTheirBitsLose) {
  const std::map<std::string, double> most = {
      {"f32", 0.0},    {"bf16", 0.002}, {"f16", 0.0003}, {"q8_0", 0.006},   {"q4_0", 0.095},
      {"q4_1", 0.085}, {"q5_0", 0.048}, {"q5_1", 0.042}, {"q2_k", 0.275},   {"q3_k", 0.15},
      {"q4_k", 0.073}, {"q5_k", 0.036}, {"q6_k", 0.019}, {"iq4_nl", 0.076}, {"iq4_xs", 0.077}};
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 0.03f);
  std::vector<float> row(kCols * 16);
  for (float& x : row) x = normal(random);
  ASSERT_EQ(row_encoders().size(), most.size());
  for (const RowEncoder& encoder : row_encoders()) {
    const std::string name = encoder.format->name();
    const double rms = relative_rms(decoded(encoder, row), row);
    EXPECT_LE(rms, most.at(name)) << name;
    EXPECT_GE(rms, most.at(name) / 2) << name << ": the limit is too wide to show anything";
  }
}

// What a format holds exactly comes back exactly.
TEST(RowEncoders, KeepNumbersOfTheFormat) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal(0.0f, 0.03f);
  std::vector<float> row(kCols);
  for (float& x : row) x = normal(random);
  for (const RowEncoder& encoder : row_encoders()) {
    const std::string name = encoder.format->name();
    if (name.ends_with("_k") || name.ends_with("_1") || name == "iq4_xs")
      continue;  // scales are sums of roundings
    const std::vector<float> once = decoded(encoder, row);
    EXPECT_LT(relative_rms(decoded(encoder, once), once), 1e-3) << name;
  }
}

TEST(RowEncoders, ZerosStayZeros) {
  const std::vector<float> zeros(kCols, 0.0f);
  for (const RowEncoder& encoder : row_encoders()) {
    EXPECT_EQ(decoded(encoder, zeros), zeros) << encoder.format->name();
  }
}

// One sign alone, one outlier, one number for all: codes stay within their bits.
TEST(RowEncoders, ExtremesStayInRange) {
  std::mt19937 random(9);
  std::uniform_real_distribution<float> positive(1.0f, 2.0f);
  std::vector<std::vector<float>> rows(4, std::vector<float>(kCols));
  for (float& x : rows[0]) x = positive(random);
  for (float& x : rows[1]) x = -positive(random);
  for (float& x : rows[2]) x = 1e-3f * positive(random);
  rows[2][100] = 30.0f;
  rows[2][300] = -30.0f;
  for (float& x : rows[3]) x = -0.7f;
  for (const RowEncoder& encoder : row_encoders()) {
    const std::string name = encoder.format->name();
    const double most = name == "q2_k" || name == "q3_k" ? 0.1 : 0.07;  // they have few codes
    for (const std::vector<float>& row : rows) {
      EXPECT_LT(relative_rms(decoded(encoder, row), row), most)
          << encoder.format->name() << " of " << row[0] << " ...";
    }
  }
}

// Super-scales of such numbers are subnormal in f16, which rounds them by several percent: no group
// may get lost for that.
TEST(RowEncoders, SmallNumbersLoseLittleMore) {
  std::mt19937 random(10);
  std::normal_distribution<float> normal(0.0f, 1.0f);
  std::vector<float> row(kCols * 16);
  for (const float size : {2e-4f, 1e-4f, 5e-5f, 3e-5f}) {
    for (float& x : row) x = size * normal(random);
    for (const auto& [name, most] : std::map<std::string, double>{{"q2_k", 0.3},
                                                                  {"q3_k", 0.16},
                                                                  {"q4_k", 0.08},
                                                                  {"q5_k", 0.06},
                                                                  {"q6_k", 0.03},
                                                                  {"iq4_xs", 0.1}}) {
      const RowEncoder& encoder = *find_row_encoder(find_format(name));
      EXPECT_LT(relative_rms(decoded(encoder, row), row), most) << name << " of " << size;
    }
  }
}

// Smaller than half of the smallest unit.
TEST(RowEncoders, NumbersBelowTheFormatBecomeZero) {
  const std::vector<float> row(kCols, -1e-9f);
  for (const char* name : {"q2_k", "q4_k", "q5_k"}) {
    EXPECT_EQ(decoded(*find_row_encoder(find_format(name)), row), std::vector<float>(kCols, 0.0f))
        << name;
  }
}

}  // namespace
}  // namespace jackscrew
