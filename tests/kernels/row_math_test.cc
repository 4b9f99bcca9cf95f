#include "kernels/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <vector>

#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

// A function is inlined into each of these and compiled as row kernels compile it: fused
// multiply-adds change its last bits.
#define JACKSCREW_TEST_ONE(name, function, attributes)            \
  attributes void name(const float* x, float* y, int64_t count) { \
    for (int64_t i = 0; i < count; ++i) y[i] = function(x[i]);    \
  }
#define JACKSCREW_TEST_FUNCTION(run, function)                                          \
  JACKSCREW_TEST_ONE(run##_v3, function, __attribute__((target("arch=x86-64-v3"))))     \
  JACKSCREW_TEST_ONE(run##_v4, function, __attribute__((target("arch=x86-64-v4"))))     \
  void run(const std::vector<float>& x, std::vector<float>& y) {                        \
    y.resize(x.size());                                                                 \
    (test_isa() == IsaLevel::v3 ? run##_v3 : run##_v4)(x.data(), y.data(),              \
                                                       static_cast<int64_t>(x.size())); \
  }
JACKSCREW_TEST_FUNCTION(run_exp, row_exp)
JACKSCREW_TEST_FUNCTION(run_log, row_log)
JACKSCREW_TEST_FUNCTION(run_cos_of_turns, row_cos_of_turns)
#undef JACKSCREW_TEST_FUNCTION
#undef JACKSCREW_TEST_ONE

// |got - want| in units of the last place of want.
double ulps(float got, double want) {
  const int exponent = std::ilogb(want);
  return std::fabs(static_cast<double>(got) - want) / std::ldexp(1.0, exponent - 23);
}

TEST(RowExp, IsWithinTwoUlpOverItsRange) {
  // Every 61st float between the two bounds, of either sign.
  double worst = 0.0;
  float worst_at = 0.0f;
  std::vector<float> x, y;
  for (const uint32_t sign : {0u, 0x80000000u}) {
    const uint32_t last = float_bits(sign == 0 ? 88.72f : 87.33f);
    for (uint32_t bits = 0; bits <= last;) {
      x.clear();
      for (; bits <= last && x.size() < 65536; bits += 61) x.push_back(bits_float(bits | sign));
      run_exp(x, y);
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = ulps(y[i], std::exp(static_cast<double>(x[i])));
        if (!(error <= worst)) {
          worst = error;
          worst_at = x[i];
        }
      }
    }
  }
  EXPECT_LE(worst, 2.0) << "at " << worst_at;
}

TEST(RowExp, EndsOfItsRange) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const std::vector<float> x = {0.0f,      -0.0f,      -87.34f,
                                -1000.0f,  -kInfinity, 88.72285f,
                                100000.0f, kInfinity,  std::numeric_limits<float>::quiet_NaN()};
  std::vector<float> y;
  run_exp(x, y);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[1], 1.0f);
  for (const size_t i : {2u, 3u, 4u}) EXPECT_EQ(y[i], 0.0f) << x[i];
  for (const size_t i : {5u, 6u, 7u}) {
    EXPECT_GT(y[i], 3.39e38f) << x[i];
    EXPECT_LE(y[i], std::numeric_limits<float>::max()) << x[i];
  }
  EXPECT_TRUE(std::isnan(y[8]));  // a NaN must reach the loss, where the step is rejected
}

// Every number that a random one of 24 bits can be.
std::vector<float> uniforms(int32_t begin, int32_t end) {
  std::vector<float> x;
  for (int32_t i = begin; i < end; ++i) x.push_back(static_cast<float>(i) * 0x1p-24f);
  return x;
}

TEST(RowLog, IsWithinTwoUlpOfUniformNumbers) {
  double worst = 0.0;
  std::vector<float> y;
  constexpr int32_t kAll = 1 << 24, kPart = 1 << 20;
  for (int32_t begin = 1; begin < kAll; begin += kPart) {
    const std::vector<float> x = uniforms(begin, std::min(begin + kPart, kAll));
    run_log(x, y);
    for (size_t i = 0; i < x.size(); ++i) {
      worst = worse(worst, ulps(y[i], std::log(static_cast<double>(x[i]))));
    }
  }
  EXPECT_LE(worst, 2.0);
  run_log({1.0f}, y);
  EXPECT_EQ(y[0], 0.0f);
}

TEST(RowCosOfTurns, IsWithinAMillionth) {
  double worst = 0.0;
  std::vector<float> y;
  const std::vector<float> x = uniforms(0, 1 << 24);
  run_cos_of_turns(x, y);
  for (size_t i = 0; i < x.size(); ++i) {
    const double want = std::cos(2.0 * std::numbers::pi * static_cast<double>(x[i]));
    worst = worse(worst, std::fabs(static_cast<double>(y[i]) - want));
  }
  EXPECT_LE(worst, 1e-6);
}

}  // namespace
}  // namespace jackscrew
