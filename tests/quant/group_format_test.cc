// Formats that code elements in groups, against plain loops over the descriptions of the formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/plan/plan_ops.h"
#include "quant/dynamic_map.h"
#include "quant/int4_affine.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

float absmax_of(const std::vector<float>& group) {
  float largest = 0.0f;
  for (const float value : group) largest = std::max(largest, std::abs(value));
  return largest;
}

using Values = std::vector<float>;

// What a group is rounded to; the distance between the codes around each of its values; and what a
// stochastic choice between them is on average: the value, unless no codes lie around it.
struct Coded {
  Values values, gaps, targets;

  void add(float value, float gap, float target) {
    values.push_back(value);
    gaps.push_back(gap);
    targets.push_back(target);
  }
  void add(const Coded& other) {
    for (size_t i = 0; i < other.values.size(); ++i) {
      add(other.values[i], other.gaps[i], other.targets[i]);
    }
  }
};

Coded int8_group(const Values& group) {
  const float scale = absmax_of(group) / 127.0f;
  Coded out;
  for (const float value : group) {
    const float q = scale == 0.0f ? 0.0f : std::nearbyint(value / scale) + 0.0f;  // no -0
    out.add(scale * std::clamp(q, -127.0f, 127.0f), scale, value);
  }
  return out;
}

template <int kMost>
Coded affine_group(const Values& group) {
  constexpr auto kTop = static_cast<float>(kMost);
  const float low = std::min(0.0f, *std::min_element(group.begin(), group.end()));
  const float high = std::max(0.0f, *std::max_element(group.begin(), group.end()));
  const float scale = (high - low) / kTop;
  const float inverse = std::min(kTop / (high - low), std::numeric_limits<float>::max());
  const float zero = std::clamp(-std::nearbyint(low * inverse), 0.0f, kTop);
  Coded out;
  for (const float value : group) {
    const float q = std::nearbyint(value * inverse) + zero;
    out.add(scale * (std::clamp(q, 0.0f, kTop) - zero), scale,
            std::clamp(value, -zero * scale, (kTop - zero) * scale));
  }
  return out;
}

// The nearest entry of a codebook, scaled, and the distance between the two around x.
void add_nearest(std::span<const float> book, float x, float scale, Coded& out) {
  const auto above = std::upper_bound(book.begin() + 1, book.end() - 1, x);
  const float high = *above;
  const float low = *(above - 1);
  out.add(scale * (x > 0.5f * (low + high) ? high : low), scale * (high - low),
          scale * std::clamp(x, book.front(), book.back()));
}

Coded int8_dynamic_group(const Values& group) {
  const float scale = absmax_of(group);
  Coded out;
  for (const float value : group) {
    add_nearest(signed_dynamic_map().values, scale == 0.0f ? 0.0f : value / scale, scale, out);
  }
  return out;
}

constexpr float kNf4[] = {-1.0f,
                          -0.6961928009986877f,
                          -0.5250730514526367f,
                          -0.39491748809814453f,
                          -0.28444138169288635f,
                          -0.18477343022823334f,
                          -0.09105003625154495f,
                          0.0f,
                          0.07958029955625534f,
                          0.16093020141124725f,
                          0.24611230194568634f,
                          0.33791524171829224f,
                          0.44070982933044434f,
                          0.5626170039176941f,
                          0.7229568362236023f,
                          1.0f};

// Codes chosen by the absmax itself, values made with what is left of it.
Coded nf4_group(const Values& group, float stored_absmax) {
  const float inverse = std::min(1.0f / absmax_of(group), std::numeric_limits<float>::max());
  Coded out;
  for (const float value : group) add_nearest(kNf4, value * inverse, stored_absmax, out);
  return out;
}

// What double quantisation makes of the absmax of all blocks of a matrix.
Values nested(const Values& absmax) {
  double sum = 0.0;
  for (const float value : absmax) sum += static_cast<double>(value);
  const auto mean = static_cast<float>(sum / static_cast<double>(absmax.size()));
  Values out;
  for (size_t begin = 0; begin < absmax.size(); begin += 256) {
    Values centred;
    for (size_t i = begin; i < std::min(begin + 256, absmax.size()); ++i) {
      centred.push_back(absmax[i] - mean);
    }
    for (const float value : int8_dynamic_group(centred).values) out.push_back(value + mean);
  }
  return out;
}

std::vector<Coded> each_group(const std::vector<Values>& groups, Coded (*code)(const Values&)) {
  std::vector<Coded> out;
  for (const Values& group : groups) out.push_back(code(group));
  return out;
}

std::vector<Coded> nf4_groups(const std::vector<Values>& groups, bool is_nested) {
  Values absmax;
  for (const Values& group : groups) absmax.push_back(absmax_of(group));
  if (is_nested) absmax = nested(absmax);
  std::vector<Coded> out;
  for (size_t i = 0; i < groups.size(); ++i) out.push_back(nf4_group(groups[i], absmax[i]));
  return out;
}

struct FormatCase {
  const char* name;
  int64_t group;  // 0: a row
  bool flattened;
  std::vector<Coded> (*code)(const std::vector<Values>& groups);
  double gaussian_snr;  // dB, of 2^20 normal numbers in rows of 1024: as measured, less 0.1
};

void PrintTo(const FormatCase& format_case, std::ostream* out) {
  *out << format_case.name;
}

std::vector<float> normal_values(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) value = normal(random);
  return values;
}

class GroupFormatTest : public ::testing::TestWithParam<FormatCase> {
 protected:
  std::vector<Values> groups_of(const Values& values, int64_t rows) const {
    const auto size = static_cast<int64_t>(values.size());
    const int64_t span = GetParam().flattened ? size : size / rows;
    const int64_t group = GetParam().group > 0 ? GetParam().group : span;
    std::vector<Values> out;
    for (int64_t begin = 0; begin < size; begin += span) {
      for (int64_t at = 0; at < span; at += group) {
        out.emplace_back(values.begin() + begin + at,
                         values.begin() + begin + std::min(span, at + group));
      }
    }
    return out;
  }

  Coded coded(const Values& values, int64_t rows) const {
    Coded all;
    for (const Coded& group : GetParam().code(groups_of(values, rows))) all.add(group);
    return all;
  }
  Values expected(const Values& values, int64_t rows) const { return coded(values, rows).values; }

  template <typename T = float>
  std::vector<T> decoded(const std::vector<uint8_t>& bytes, int64_t rows, int64_t cols) {
    return decode<T>(*ops_, format_, storage_of(bytes, rows, cols), 0, rows);
  }

  std::vector<float> rounded(const std::vector<float>& values, int64_t rows,
                             const Rounding& rounding = {}) {
    const int64_t cols = static_cast<int64_t>(values.size()) / rows;
    return decoded(encode(*ops_, format_, values, rows, rounding), rows, cols);
  }

  // Where x is rounded in groups of 32 columns; the numbers of NF4's codes are, to 15 bits.
  TokenRounding token_rounding(int64_t cols) const {
    const std::string name = GetParam().name;
    if (cols % 32 != 0) return {};
    if (name.starts_with("nf4")) return {16384, 0x1p-15};
    if (name == "int8" || name == "int8_row" || name == "int8_affine") return {32767, 0.0};
    return {};
  }

  const Format& format_ = std::string(GetParam().name) == "int4_affine"
                              ? int4_affine_format()
                              : find_format(GetParam().name);
  std::unique_ptr<Ops> ops_ = make_test_ops();
};

TEST_P(GroupFormatTest, EncodesAsDescribed) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {1, 15},  {3, 7},   {5, 128}, {4, 129},
                                                {37, 96}, {9, 333}, {2, 256}, {1, 511}, {64, 64}};
  for (const auto& [rows, cols] : shapes) {
    const auto values = normal_values(rows * cols, static_cast<uint32_t>(rows));
    EXPECT_TRUE(same_bits(rounded(values, rows), expected(values, rows))) << rows << " x " << cols;
  }
}

TEST_P(GroupFormatTest, EncodesInPanels) {
  const int64_t cols = 4097;
  const int64_t rows = encode_panel_rows(cols) + 3;
  const auto values = normal_values(rows * cols, 5);
  EXPECT_TRUE(same_bits(rounded(values, rows), expected(values, rows)));
}

// All magnitudes: groups of tiny and of huge numbers, and of both.
TEST_P(GroupFormatTest, EncodesAnyMagnitude) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> exponent(-36.0f, 30.0f);
  auto values = normal_values(40 * 300, 6);
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t row = i / 300;
    if (i % 300 < 100) values[i] *= std::pow(10.0f, exponent(random));
    if (i % 300 >= 200) values[i] *= std::pow(10.0f, static_cast<float>(row) - 30.0f);
  }
  EXPECT_TRUE(same_bits(rounded(values, 40), expected(values, 40)));
}

TEST_P(GroupFormatTest, ZerosStayZeros) {
  const std::vector<float> zeros(3 * 100, 0.0f);
  EXPECT_TRUE(same_bits(rounded(zeros, 3), zeros));
}

TEST_P(GroupFormatTest, WhatIsNotFiniteShows) {
  const int64_t rows = 6;
  const size_t cols = 320;
  const size_t bad = 2 * cols + 40;
  const auto good = normal_values(rows * cols, 7);
  const auto without = groups_of(rounded(good, rows), rows);
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    auto values = good;
    values[bad] = value;
    const auto out = rounded(values, rows);
    EXPECT_FALSE(std::isfinite(out[bad]));
    if (std::string(GetParam().name) == "nf4_double") continue;  // one mean for all groups
    size_t spoilt = 0;
    const auto with = groups_of(out, rows);
    for (size_t g = 0; g < with.size(); ++g) spoilt += same_bits(with[g], without[g]) ? 0 : 1;
    EXPECT_EQ(spoilt, 1u);
  }
}

TEST_P(GroupFormatTest, LevelsAndThreadsAgree) {
  expect_levels_and_threads_agree(*ops_, format_, normal_values(50 * 129, 8), 50);
}

TEST_P(GroupFormatTest, RowsAndRowListsAreCutOutOfTheWhole) {
  expect_rows_are_cut_out_of_the_whole(*ops_, format_, normal_values(7 * 333, 9), 7);
}

TEST_P(GroupFormatTest, MultipliesASingleToken) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{1, 1},
                                   {5, 31},
                                   {13, 333},
                                   {7, 96},
                                   {3, 512},
                                   {2, 8192 + 160}}) {
    const auto bytes = encode(*ops_, format_, normal_values(rows * cols, 10), rows);
    const auto matrix = decoded(bytes, rows, cols);
    expect_product_of_a_token(*ops_, format_, storage_of(bytes, rows, cols), matrix,
                              normal_values(cols, 11), token_rounding(cols),
                              fmt::format("{} x {}", rows, cols));
    if (token_rounding(cols).largest_x == 0) continue;
    expect_product_keeps_what_is_not_finite(*ops_, format_, storage_of(bytes, rows, cols));
  }
}

// Each value becomes one of the two codes around it, and on average itself: the mean of n draws of
// a two-point distribution has at most the deviation gap / (2 sqrt(n)). The draws are equal rows,
// into which the groups fit.
TEST_P(GroupFormatTest, StochasticRoundingIsExpectedToBeExact) {
  const size_t cols = 512;
  const size_t draws = 1024;
  const auto row = normal_values(cols, 12);
  std::vector<float> values;
  for (size_t draw = 0; draw < draws; ++draw) values.insert(values.end(), row.begin(), row.end());
  const Coded codes = coded(row, 1);
  StepScalars scalars{};
  scalars.seed = 9;
  const auto out = rounded(values, draws, {true, &scalars, 55});
  double total = 0.0;
  double variance = 0.0;
  for (size_t c = 0; c < cols; ++c) {
    double sum = 0.0;
    for (size_t draw = 0; draw < draws; ++draw) {
      const float value = out[draw * cols + c];
      sum += static_cast<double>(value);
      ASSERT_LE(std::abs(value - codes.targets[c]), 1.001f * codes.gaps[c]) << c;
    }
    const double deviation = static_cast<double>(codes.gaps[c]) / (2.0 * std::sqrt(draws));
    const double bias = sum / static_cast<double>(draws) - static_cast<double>(codes.targets[c]);
    EXPECT_LE(std::abs(bias), 5.0 * deviation) << c;
    total += bias;
    variance += deviation * deviation;
  }
  EXPECT_LE(std::abs(total), 4.0 * std::sqrt(variance));
}

TEST_P(GroupFormatTest, StochasticRoundingDependsOnItsKeyAlone) {
  const int64_t cols = 4097;  // several panels
  const int64_t rows = encode_panel_rows(cols) + 2;
  const auto values = normal_values(rows * cols, 13);
  StepScalars scalars{};
  scalars.seed = 5;
  const auto once = encode(*ops_, format_, values, rows, {true, &scalars, 77});
  EXPECT_EQ(encode(*make_test_ops(1), format_, values, rows, {true, &scalars, 77}), once);
  EXPECT_NE(encode(*ops_, format_, values, rows, {true, &scalars, 78}), once);
  scalars.step = 1;
  EXPECT_NE(encode(*ops_, format_, values, rows, {true, &scalars, 77}), once);
}

TEST_P(GroupFormatTest, DistortsAsLittleAsItShould) {
  const auto values = normal_values(1 << 20, 14);
  const auto out = rounded(values, 1024);
  double signal = 0.0;
  double noise = 0.0;
  for (size_t i = 0; i < values.size(); ++i) {
    const double value = static_cast<double>(values[i]);
    signal += value * value;
    noise += (static_cast<double>(out[i]) - value) * (static_cast<double>(out[i]) - value);
  }
  const double snr = 10.0 * std::log10(signal / noise);
  std::cout << format_.name() << ": " << snr << " dB, "
            << 8.0 * static_cast<double>(format_.storage_bytes(1024, 1024)) / (1 << 20)
            << " bits per weight\n";
  EXPECT_GE(snr, GetParam().gaussian_snr);
}

TEST_P(GroupFormatTest, PlansWithoutBytes) {
  const auto plan = make_plan_ops(2, test_isa());
  const Storage nothing{Tensor(nullptr, DType::u8, {format_.storage_bytes(50, 129)}), 50, 129};
  Arena scratch = Arena::measuring();
  format_.encode(
      *plan,
      [](int64_t begin, int64_t end) {
        return Tensor(nullptr, DType::f32, {end - begin, 129});
      },
      nothing, {true, nullptr, 1}, scratch);
  format_.decode(*plan, nothing, 0, 50, Tensor(nullptr, DType::f32, {50, 129}));
  EXPECT_EQ(scratch.used(), 0);
}

TEST_P(GroupFormatTest, RefusesOtherOutputsAndEmptyMatrices) {
  const auto bytes = encode(*ops_, format_, normal_values(64, 15), 1);
  EXPECT_THROW(decoded<f16>(bytes, 1, 64), Error);
  EXPECT_THROW(format_.storage_bytes(0, 3), Error);
  EXPECT_THROW(format_.storage_bytes(3, 0), Error);
}

INSTANTIATE_TEST_SUITE_P(
    Formats, GroupFormatTest,
    ::testing::Values(
        FormatCase{"int8", 128, false,
                   [](const auto& groups) { return each_group(groups, int8_group); }, 43.6},
        FormatCase{"int8_row", 0, false,
                   [](const auto& groups) { return each_group(groups, int8_group); }, 42.0},
        FormatCase{"int8_affine", 256, true,
                   [](const auto& groups) { return each_group(groups, affine_group<255>); }, 43.7},
        FormatCase{"int4_affine", 256, true,
                   [](const auto& groups) { return each_group(groups, affine_group<15>); }, 18.0},
        FormatCase{"int8_dynamic", 128, true,
                   [](const auto& groups) { return each_group(groups, int8_dynamic_group); }, 39.7},
        FormatCase{"nf4", 64, true, [](const auto& groups) { return nf4_groups(groups, false); },
                   20.6},
        FormatCase{"nf4_double", 64, true,
                   [](const auto& groups) { return nf4_groups(groups, true); }, 20.6}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace jackscrew
