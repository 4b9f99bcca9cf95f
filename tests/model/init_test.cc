// First weights from random numbers, against Box and Muller's transform in double precision.
#include "model/init.rows.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/ops.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

constexpr uint64_t kSeed = 7;
constexpr uint32_t kTensor = 12345;
constexpr float kMean = 0.5f, kDeviation = 0.02f;

std::vector<float> normal(Ops& ops, int64_t first_row, int64_t rows, int64_t width) {
  std::vector<float> x(static_cast<size_t>(rows * width));
  ops.launch(NormalInit{x.data(), kSeed, width, first_row, kTensor, kMean, kDeviation}, rows);
  return x;
}

// Block b of Philox has the numbers of elements 32 (b / 16) + b % 16 and of the sixteenth behind.
double expected(int64_t row, int64_t column, int64_t width) {
  const RandomStream stream = RandomStream::make(kSeed, RandomPurpose::init, 0, kTensor);
  const int64_t parts = (width + 31) / 32;
  const int64_t part = row * parts + column / 32;
  const int64_t place = column % 32;
  const Philox4 four = stream.four(static_cast<uint64_t>(16 * part + place % 16));
  const auto uniform = [&](int64_t i) {
    return static_cast<double>(RandomStream::uniform_of(four.x[i]));
  };
  const double u = 1.0 - uniform(place / 16);
  const double angle = 2.0 * std::numbers::pi * uniform(2 + place / 16);
  return static_cast<double>(kMean) +
         static_cast<double>(kDeviation) * std::sqrt(-2.0 * std::log(u)) * std::cos(angle);
}

TEST(NormalInit, IsTheTransformOfRandomNumbers) {
  const auto ops = make_test_ops();
  for (const int64_t width : {1, 31, 32, 33, 576}) {
    const std::vector<float> x = normal(*ops, 0, 5, width);
    for (int64_t row = 0; row < 5; ++row) {
      for (int64_t column = 0; column < width; ++column) {
        EXPECT_NEAR(static_cast<double>(x[static_cast<size_t>(row * width + column)]),
                    expected(row, column, width), 3e-7);
      }
    }
  }
}

TEST(NormalInit, DoesNotDependOnHowAMatrixIsCut) {
  const auto ops = make_test_ops();
  const std::vector<float> whole = normal(*ops, 0, 9, 100);
  const std::vector<float> rest = normal(*ops, 4, 5, 100);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), whole.begin() + 400));
}

TEST(NormalInit, HasTheMomentsOfANormalDistribution) {
  const auto ops = make_test_ops();
  const std::vector<float> x = normal(*ops, 0, 1000, 1000);
  double mean = 0, square = 0, fourth = 0;
  for (const float value : x) {
    const double z = (static_cast<double>(value) - 0.5) / 0.02;
    mean += z / 1e6;
    square += z * z / 1e6;
    fourth += z * z * z * z / 1e6;
  }
  // Five standard deviations of a million numbers' means: 1e-3 times 1, sqrt(2) and sqrt(96).
  EXPECT_NEAR(mean, 0.0, 5e-3);
  EXPECT_NEAR(square, 1.0, 7.1e-3);
  EXPECT_NEAR(fourth, 3.0, 4.9e-2);
}

}  // namespace
}  // namespace jackscrew
