#include "kernels/row_math.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// row_exp is inlined into each of these and compiled as row kernels compile it: fused
// multiply-adds change its last bits.
#define JACKSCREW_TEST_EXP(name, attributes)                                \
  attributes void name(const float* x, float* y, int64_t count) {           \
    for (int64_t i = 0; i < count; ++i) y[i] = row_exp(x[i]);               \
  }
JACKSCREW_TEST_EXP(exp_v3, __attribute__((target("arch=x86-64-v3"))))
JACKSCREW_TEST_EXP(exp_v4, __attribute__((target("arch=x86-64-v4"))))
#undef JACKSCREW_TEST_EXP

void run_exp(const std::vector<float>& x, std::vector<float>& y) {
  y.resize(x.size());
  (test_isa() == IsaLevel::v3 ? exp_v3 : exp_v4)(x.data(), y.data(),
                                                 static_cast<int64_t>(x.size()));
}

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
        if (error > worst) {
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
  const std::vector<float> x = {0.0f,      -0.0f,     -87.34f, -1000.0f, -kInfinity,
                                88.72285f, 100000.0f, kInfinity, std::numeric_limits<float>::quiet_NaN()};
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

}  // namespace
}  // namespace jackscrew
