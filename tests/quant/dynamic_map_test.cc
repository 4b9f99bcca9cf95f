#include "quant/dynamic_map.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace jackscrew {
namespace {

// In the other order: from the codes to the values.
double closed_form(bool with_negatives, int code) {
  const int zero = with_negatives ? 127 : 0;
  if (code == zero || code == 255) return code == zero ? 0.0 : 1.0;
  const int place = std::abs(code - zero) - 1;  // among all cells, from the smallest on
  int first = 0;
  int cells = with_negatives ? 1 : 2;
  double power = -6.0;
  for (; place >= first + cells; cells *= 2, ++power) first += cells;
  const double value = std::pow(10.0, power) * (0.1 + 0.9 * (place - first + 0.5) / cells);
  return code < zero ? -value : value;
}

TEST(DynamicMap, IsTheClosedForm) {
  for (const bool with_negatives : {true, false}) {
    const DynamicMap& map = with_negatives ? signed_dynamic_map() : unsigned_dynamic_map();
    for (int code = 0; code < 256; ++code) {
      EXPECT_FLOAT_EQ(map.values[code], static_cast<float>(closed_form(with_negatives, code)));
      EXPECT_TRUE(code == 0 || map.values[code - 1] < map.values[code]);
    }
    EXPECT_EQ(map.values[map.zero], 0.0f);
  }
}

// Single values and sums as bitsandbytes prints them.
TEST(DynamicMap, HasThePublishedValues) {
  const float* s = signed_dynamic_map().values;
  EXPECT_FLOAT_EQ(s[0], -0.992968738f);
  EXPECT_FLOAT_EQ(s[126], -5.5e-7f);
  EXPECT_FLOAT_EQ(s[128], 5.5e-7f);
  EXPECT_FLOAT_EQ(s[254], 0.992968738f);
  EXPECT_EQ(s[255], 1.0f);
  EXPECT_NEAR(std::accumulate(s, s + 256, 0.0), 1.0, 1e-7);
  const float* u = unsigned_dynamic_map().values;
  const float first[] = {0.0f, 3.25e-7f, 7.75e-7f, 2.125e-6f, 4.375e-6f};
  const float last[] = {0.982421875f, 0.98945308f, 0.99648440f, 1.0f};
  for (size_t i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(u[i], first[i]) << i;
  for (size_t i = 0; i < 4; ++i) EXPECT_FLOAT_EQ(u[252 + i], last[i]) << i;
  EXPECT_NEAR(std::accumulate(u, u + 256, 0.0), 75.10526, 1e-5);
}

TEST(DynamicMap, EncodesThePublishedVector) {
  const float x[] = {.5f, -.25f, .1f, -1.0f, .003f, .75f, -.0625f, 0.0f};
  const int expected[] = {219, 53, 190, 0, 146, 237, 77, 127};
  for (size_t i = 0; i < 8; ++i) EXPECT_EQ(dynamic_code(signed_dynamic_map(), x[i]), expected[i]);
}

// Evenly spread, spread over all decades, and every value with its midpoints and their neighbours.
std::vector<float> probes(const DynamicMap& map) {
  std::mt19937 random(3);
  std::uniform_real_distribution<float> even(-1.0f, 1.0f);
  std::vector<float> out = {-1.0f, 1.0f, 0.0f, 1e-30f, -1e-30f, -2.0f, 2.0f};
  for (int i = 0; i < 20000; ++i) {
    out.push_back(even(random));
    out.push_back(even(random) * std::pow(10.0f, 4.0f * even(random) - 4.0f));
  }
  for (int i = 0; i < 255; ++i) {
    const float middle = 0.5f * (map.values[i] + map.values[i + 1]);
    for (const float at : {map.values[i], middle}) {
      out.insert(out.end(), {at, std::nextafter(at, -2.0f), std::nextafter(at, 2.0f)});
    }
  }
  return out;
}

TEST(DynamicMap, CodesAreTheNearest) {
  for (const DynamicMap* map : {&signed_dynamic_map(), &unsigned_dynamic_map()}) {
    for (const float x : probes(*map)) {
      const int32_t code = dynamic_code(*map, x);
      ASSERT_GE(code, 0);
      ASSERT_LE(code, 255);
      const double distance = std::abs(static_cast<double>(map->values[code]) - x);
      for (const float value : map->values) {
        // The midpoint is rounded to f32 before x is compared with it.
        ASSERT_LE(distance, std::abs(static_cast<double>(value) - x) + 1.2e-7 * std::abs(x)) << x;
      }
    }
  }
}

TEST(DynamicMap, SignsAreKept) {
  for (const DynamicMap* map : {&signed_dynamic_map(), &unsigned_dynamic_map()}) {
    for (const float x : probes(*map)) {
      if (map == &unsigned_dynamic_map() && x < 0.0f) continue;
      const int32_t code = dynamic_code_keeping_sign(*map, x);
      const float value = map->values[code];
      EXPECT_EQ(value > 0.0f, x > 0.0f) << x;
      EXPECT_EQ(value < 0.0f, x < 0.0f) << x;
      const int32_t nearest = dynamic_code(*map, x);
      if (nearest != map->zero) {
        EXPECT_EQ(code, nearest) << x;
      }
    }
  }
}

TEST(DynamicMap, StochasticCodesAreExpectedToBeExact) {
  constexpr int kDraws = 64;
  for (const DynamicMap* map : {&signed_dynamic_map(), &unsigned_dynamic_map()}) {
    const float lowest = map->values[0];
    for (const float x : probes(*map)) {
      if (x < lowest || x > 1.0f) continue;
      double sum = 0.0;
      const auto above = std::upper_bound(map->values + 1, map->values + 255, x);
      const auto below = static_cast<int32_t>(above - map->values) - 1;
      const float gap = map->values[below + 1] - map->values[below];
      for (int draw = 0; draw < kDraws; ++draw) {
        const float uniform = static_cast<float>(draw) / kDraws;
        const int32_t code = dynamic_code(*map, x, uniform);
        ASSERT_TRUE(code == below || code == below + 1) << x;
        sum += static_cast<double>(map->values[code]);
      }
      // Equally spaced draws miss the share by less than one draw.
      ASSERT_NEAR(sum / kDraws, x, 1.01 * gap / kDraws) << x;
    }
    // A value itself never moves.
    for (int32_t i = 0; i < 256; ++i) {
      EXPECT_EQ(dynamic_code(*map, map->values[i], 0.0f), i);
      EXPECT_EQ(dynamic_code(*map, map->values[i], 0.99999994f), i);
    }
  }
}

}  // namespace
}  // namespace jackscrew
