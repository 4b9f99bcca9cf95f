// Formats that code elements in groups, against plain loops over the descriptions of the formats.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/error.h"
#include "kernels/plan/plan_ops.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

float absmax_of(const std::vector<float>& group) {
  float largest = 0.0f;
  for (const float value : group) largest = std::max(largest, std::abs(value));
  return largest;
}

// What a group is rounded to, and the distance between the codes around each of its values.
struct Coded {
  std::vector<float> values;
  std::vector<float> gaps;
};

Coded int8_group(const std::vector<float>& group) {
  const float scale = absmax_of(group) / 127.0f;
  Coded out;
  for (const float value : group) {
    const float q = scale == 0.0f ? 0.0f : std::nearbyint(value / scale);
    out.values.push_back(scale * std::clamp(q, -127.0f, 127.0f) + 0.0f);  // no -0
    out.gaps.push_back(scale);
  }
  return out;
}

struct FormatCase {
  const char* name;
  int64_t group;  // 0: a row
  bool flattened;
  Coded (*code)(const std::vector<float>& group);
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
  // Calls f(begin, end) for the elements of each group.
  void for_groups(int64_t rows, int64_t cols, const std::function<void(size_t, size_t)>& f) const {
    const int64_t span = GetParam().flattened ? rows * cols : cols;
    const int64_t group = GetParam().group > 0 ? GetParam().group : cols;
    for (int64_t begin = 0; begin < rows * cols; begin += span) {
      for (int64_t at = 0; at < span; at += group) {
        f(static_cast<size_t>(begin + at), static_cast<size_t>(begin + std::min(span, at + group)));
      }
    }
  }

  Coded expected(const std::vector<float>& values, int64_t rows) const {
    Coded all;
    const int64_t cols = static_cast<int64_t>(values.size()) / rows;
    for_groups(rows, cols, [&](size_t begin, size_t end) {
      const Coded group = GetParam().code({values.begin() + static_cast<ptrdiff_t>(begin),
                                           values.begin() + static_cast<ptrdiff_t>(end)});
      all.values.insert(all.values.end(), group.values.begin(), group.values.end());
      all.gaps.insert(all.gaps.end(), group.gaps.begin(), group.gaps.end());
    });
    return all;
  }

  template <typename T = float>
  std::vector<T> decoded(const std::vector<uint8_t>& bytes, int64_t rows, int64_t cols) {
    return decode_tile<T>(*ops_, format_, storage_of(bytes, rows, cols), {0, rows, 0, cols});
  }

  std::vector<float> rounded(const std::vector<float>& values, int64_t rows,
                             const Rounding& rounding = {}) {
    const int64_t cols = static_cast<int64_t>(values.size()) / rows;
    return decoded(encode(*ops_, format_, values, rows, rounding), rows, cols);
  }

  const Format& format_ = find_format(GetParam().name);
  std::unique_ptr<Ops> ops_ = make_test_ops();
};

TEST_P(GroupFormatTest, EncodesAsDescribed) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 1},   {1, 15},  {3, 7},   {5, 128}, {4, 129},
                                                {37, 96}, {9, 333}, {2, 256}, {1, 511}, {64, 64}};
  for (const auto& [rows, cols] : shapes) {
    const auto values = normal_values(rows * cols, static_cast<uint32_t>(rows));
    EXPECT_TRUE(same_bits(rounded(values, rows), expected(values, rows).values))
        << rows << " x " << cols;
  }
}

TEST_P(GroupFormatTest, EncodesInPanels) {
  const int64_t cols = 4097;
  const int64_t rows = encode_panel_rows(cols) + 3;
  const auto values = normal_values(rows * cols, 5);
  EXPECT_TRUE(same_bits(rounded(values, rows), expected(values, rows).values));
}

// All magnitudes: groups of tiny and of huge numbers, and of both.
TEST_P(GroupFormatTest, EncodesAnyMagnitude) {
  std::mt19937 random(11);
  std::uniform_real_distribution<float> exponent(-36.0f, 30.0f);
  auto values = normal_values(40 * 300, 6);
  for (size_t i = 0; i < values.size(); ++i) {
    if (i % 300 < 100) values[i] *= std::pow(10.0f, exponent(random));
    if (i % 300 >= 200) values[i] *= std::pow(10.0f, static_cast<float>(i / 300) - 30.0f);
  }
  EXPECT_TRUE(same_bits(rounded(values, 40), expected(values, 40).values));
}

TEST_P(GroupFormatTest, ZerosStayZeros) {
  const std::vector<float> zeros(3 * 100, 0.0f);
  EXPECT_TRUE(same_bits(rounded(zeros, 3), zeros));
}

TEST_P(GroupFormatTest, WhatIsNotFiniteShows) {
  const int64_t rows = 6;
  const int64_t cols = 320;
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    auto values = normal_values(rows * cols, 7);
    values[2 * 320 + 40] = bad;
    const auto out = rounded(values, rows);
    const auto good = expected(normal_values(rows * cols, 7), rows).values;
    for_groups(rows, cols, [&](size_t begin, size_t end) {
      const bool hit = begin <= 2 * 320 + 40 && 2 * 320 + 40 < end;
      EXPECT_TRUE(!hit || !std::isfinite(out[2 * 320 + 40]));
      for (size_t i = begin; i < end && !hit; ++i) ASSERT_EQ(out[i], good[i]) << i;
    });
  }
}

TEST_P(GroupFormatTest, LevelsAndThreadsAgree) {
  const auto values = normal_values(50 * 129, 8);
  StepScalars scalars{};
  for (const bool stochastic : {false, true}) {
    const Rounding rounding{stochastic, &scalars, 3};
    const auto bytes = encode(*ops_, format_, values, 50, rounding);
    const auto all = decoded(bytes, 50, 129);
    for (const IsaLevel level : {IsaLevel::v3, IsaLevel::v4}) {
      if (level > test_isa()) continue;
      for (const int threads : {1, 3}) {
        const auto ops = make_cpu_ops(threads, level);
        EXPECT_EQ(encode(*ops, format_, values, 50, rounding), bytes);
        EXPECT_TRUE(same_bits(
            decode_tile(*ops, format_, storage_of(bytes, 50, 129), {0, 50, 0, 129}), all));
      }
    }
  }
}

TEST_P(GroupFormatTest, TilesAndRowListsAreCutOutOfTheWhole) {
  const int64_t rows = 7;
  const int64_t cols = 333;
  const auto bytes = encode(*ops_, format_, normal_values(rows * cols, 9), rows);
  const Storage storage = storage_of(bytes, rows, cols);
  const auto whole = decoded(bytes, rows, cols);
  const TileRange tiles[] = {{1, 5, 0, 333},   {0, 7, 1, 2},     {2, 3, 63, 65},  {3, 7, 128, 256},
                             {0, 2, 331, 333}, {6, 7, 130, 333}, {1, 2, 17, 300}, {0, 7, 255, 258}};
  for (const TileRange& tile : tiles) {
    const int64_t stride = tile.k1 - tile.k0 + 5;
    std::vector<float> wide(static_cast<size_t>((tile.n1 - tile.n0) * stride), -1234.0f);
    format_.decode_tile(*ops_, storage, tile,
                        Tensor(wide.data(), DType::f32, {tile.n1 - tile.n0, stride})
                            .columns(2, 2 + tile.k1 - tile.k0));
    for (size_t i = 0; i < wide.size(); ++i) {
      const int64_t r = static_cast<int64_t>(i) / stride;
      const int64_t c = static_cast<int64_t>(i) % stride - 2;
      const bool inside = c >= 0 && c < tile.k1 - tile.k0;
      const size_t at = static_cast<size_t>((tile.n0 + r) * cols + tile.k0 + c);
      ASSERT_EQ(wide[i], inside ? whole[at] : -1234.0f) << r << ", " << c;
    }
  }
  std::vector<int32_t> indices = {6, 0, 3, 3};
  std::vector<float> picked(indices.size() * static_cast<size_t>(cols));
  format_.decode_rows(*ops_, storage, Tensor(indices.data(), DType::i32, {4}),
                      Tensor(picked.data(), DType::f32, {4, cols}));
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto row = static_cast<size_t>(indices[i / static_cast<size_t>(cols)]);
    ASSERT_EQ(picked[i], whole[row * static_cast<size_t>(cols) + i % static_cast<size_t>(cols)]);
  }
  const auto as_bf16 = decoded<bf16>(bytes, rows, cols);
  for (size_t i = 0; i < whole.size(); ++i) ASSERT_EQ(as_bf16[i].bits, to_bf16(whole[i]).bits);
}

TEST_P(GroupFormatTest, MultipliesASingleToken) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {5, 31}, {13, 333}, {3, 512}}) {
    const auto bytes = encode(*ops_, format_, normal_values(rows * cols, 10), rows);
    const auto matrix = decoded(bytes, rows, cols);
    std::vector<float> x = normal_values(cols, 11);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      std::vector<float> y(static_cast<size_t>(rows), 0.5f);
      format_.multiply(*ops_, storage_of(bytes, rows, cols),
                       Tensor(x.data(), DType::f32, {1, cols}),
                       Tensor(y.data(), DType::f32, {1, rows}), accumulate);
      for (size_t r = 0; r < y.size(); ++r) {
        double sum = accumulate == Accumulate::yes ? 0.5 : 0.0;
        double magnitude = sum;
        for (size_t c = 0; c < x.size(); ++c) {
          const double term =
              static_cast<double>(x[c]) * static_cast<double>(matrix[r * x.size() + c]);
          sum += term;
          magnitude += std::abs(term);
        }
        EXPECT_NEAR(y[r], sum, 1e-6 * magnitude) << rows << " x " << cols << ", row " << r;
      }
    }
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
  const Coded nearest = expected(row, 1);
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
      ASSERT_LE(std::abs(value - row[c]), 1.001f * nearest.gaps[c]) << c;
    }
    const double deviation = static_cast<double>(nearest.gaps[c]) / (2.0 * std::sqrt(draws));
    const double bias = sum / static_cast<double>(draws) - static_cast<double>(row[c]);
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
  format_.decode_tile(*plan, nothing, {0, 50, 0, 129}, Tensor(nullptr, DType::f32, {50, 129}));
  EXPECT_EQ(scratch.used(), 0);
}

TEST_P(GroupFormatTest, RefusesOtherOutputsAndEmptyMatrices) {
  const auto bytes = encode(*ops_, format_, normal_values(64, 15), 1);
  EXPECT_THROW(decoded<f16>(bytes, 1, 64), Error);
  EXPECT_THROW(format_.storage_bytes(0, 3), Error);
  EXPECT_THROW(format_.storage_bytes(3, 0), Error);
}

INSTANTIATE_TEST_SUITE_P(Formats, GroupFormatTest,
                         ::testing::Values(FormatCase{"int8", 128, false, int8_group, 43.6},
                                           FormatCase{"int8_row", 0, false, int8_group, 42.0}),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace jackscrew
