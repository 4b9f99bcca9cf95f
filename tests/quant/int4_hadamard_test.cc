// int4_hadamard against a plain model of what it transforms and rounds.
#include "quant/int4_hadamard.h"

#include <limits>
#include <random>

#include "kernels/plan/plan_ops.h"
#include "tests/quant/decode.h"
#include "tests/support/hadamard.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

using Values = std::vector<float>;

// Rows as codes of their transform.
struct TransformedRows {
  Values codes;    // [rows, cols]
  Values scales;   // [rows]
  Values decoded;  // [rows, cols]
};

class Int4Hadamard : public ::testing::Test {
 protected:
  static Values normal_values(int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Values values(static_cast<size_t>(count));
    for (float& value : values) value = normal(random);
    return values;
  }

  static float shrink(int64_t cols) {
    return 1.0f / std::sqrt(static_cast<float>(largest_block(cols)));
  }

  // Sums of pairs have the bits that the program's have.
  static TransformedRows coded(const Values& values, int64_t rows) {
    const int64_t cols = static_cast<int64_t>(values.size()) / rows;
    TransformedRows out;
    const Values wide = summed(values, largest_block(cols));
    for (int64_t row = 0; row < rows; ++row) {
      const auto at = static_cast<size_t>(row * cols);
      const auto end = at + static_cast<size_t>(cols);
      double squares = 0.0;
      for (size_t i = at; i < end; ++i) {
        squares += static_cast<double>(values[i]) * static_cast<double>(values[i]);
      }
      const auto scale = static_cast<float>(0.335 * std::sqrt(squares / static_cast<double>(cols)));
      out.scales.push_back(scale);
      for (size_t i = at; i < end; ++i) {
        const float number = scale > 0.0f ? wide[i] * (shrink(cols) / scale) : 0.0f;
        out.codes.push_back(std::clamp(std::nearbyint(number), -8.0f, 7.0f) + 0.0f);
      }
    }
    out.decoded = summed(out.codes, largest_block(cols));
    for (size_t i = 0; i < out.decoded.size(); ++i) {
      out.decoded[i] *= out.scales[i / static_cast<size_t>(cols)] * shrink(cols);
    }
    return out;
  }

  Values rounded(const Values& values, int64_t rows, const Rounding& rounding = {}) {
    return decoded(encode(*ops_, format_, values, rows, rounding), rows,
                   static_cast<int64_t>(values.size()) / rows);
  }
  template <typename T = float>
  std::vector<T> decoded(const std::vector<uint8_t>& bytes, int64_t rows, int64_t cols) {
    return decode<T>(*ops_, format_, storage_of(bytes, rows, cols), 0, rows);
  }

  const Format& format_ = find_format("int4_hadamard");
  std::unique_ptr<Ops> ops_ = make_test_ops();
};

TEST_F(Int4Hadamard, EncodesAsDescribed) {
  const std::pair<int64_t, int64_t> shapes[] = {{1, 2},   {1, 14},  {3, 6},   {5, 128},  {4, 130},
                                                {37, 96}, {9, 334}, {2, 256}, {1, 1022}, {64, 64}};
  for (const auto& [rows, cols] : shapes) {
    const Values values = normal_values(rows * cols, static_cast<uint32_t>(rows));
    const TransformedRows model = coded(values, rows);
    const auto bytes = encode(*ops_, format_, values, rows);
    EXPECT_TRUE(same_bits(decoded(bytes, rows, cols), model.decoded)) << rows << " x " << cols;
    const Int4Rows view = format_.int4_rows(storage_of(bytes, rows, cols));
    EXPECT_EQ(view.block, largest_block(cols));
    for (int64_t row = 0; row < rows; ++row) {
      EXPECT_EQ(view.scales.data<float>()[row], model.scales[static_cast<size_t>(row)]);
      for (int64_t i = 0; i < cols; ++i) {
        const uint8_t pair = view.codes.rows(row, row + 1).data<uint8_t>()[i / 2];
        const int code = (i % 2 == 0 ? pair >> 4 : pair & 15) - 8;
        ASSERT_EQ(code, model.codes[static_cast<size_t>(row * cols + i)]) << row << ", " << i;
      }
    }
  }
}

TEST_F(Int4Hadamard, EncodesInPanels) {
  const int64_t cols = 4098;
  const int64_t rows = encode_panel_rows(cols) + 3;
  const Values values = normal_values(rows * cols, 5);
  EXPECT_TRUE(same_bits(rounded(values, rows), coded(values, rows).decoded));
}

TEST_F(Int4Hadamard, TakesTheBitsThatItSays) {
  EXPECT_EQ(format_.storage_bytes(64, 576), 64 * 288 + 64 * 4);
  EXPECT_THROW(format_.storage_bytes(3, 7), Error);
  EXPECT_THROW(format_.storage_bytes(0, 2), Error);
  EXPECT_THROW(format_.storage_bytes(2, 0), Error);
}

TEST_F(Int4Hadamard, ZerosStayZerosAndWhatIsNotFiniteShows) {
  const Values zeros(3 * 100, 0.0f);
  EXPECT_TRUE(same_bits(rounded(zeros, 3), zeros));
  const int64_t rows = 6;
  const size_t cols = 320;
  const Values good = normal_values(rows * static_cast<int64_t>(cols), 7);
  const Values without = rounded(good, rows);
  for (const float value : {NAN, INFINITY, -INFINITY}) {
    Values values = good;
    values[2 * cols + 40] = value;
    const Values with = rounded(values, rows);
    for (size_t i = 0; i < with.size(); ++i) {
      if (i / cols == 2) {
        EXPECT_FALSE(std::isfinite(with[i])) << i;
      } else {
        ASSERT_EQ(with[i], without[i]) << i;
      }
    }
  }
}

TEST_F(Int4Hadamard, LevelsAndThreadsAgree) {
  expect_levels_and_threads_agree(*ops_, format_, normal_values(50 * 130, 8), 50);
}

TEST_F(Int4Hadamard, RowsAndRowListsAreCutOutOfTheWhole) {
  expect_rows_are_cut_out_of_the_whole(*ops_, format_, normal_values(7 * 334, 9), 7);
}

// x is transformed, then rounded to 16 bits where groups of 32 columns can be.
TEST_F(Int4Hadamard, MultipliesASingleToken) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 2}, {13, 334}, {7, 96}, {3, 512}, {2, 8192 + 160}}) {
    const Values values = normal_values(rows * cols, 10);
    const auto bytes = encode(*ops_, format_, values, rows);
    const TransformedRows model = coded(values, rows);
    const Values x = normal_values(cols, 11);
    Values rotated = summed(x, largest_block(cols));
    for (float& value : rotated) value *= shrink(cols);
    if (cols % 32 == 0) rotated = rounded_token(rotated, {32767});
    Memory memory("host", make_host_backing(), 0);
    Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      Values y(static_cast<size_t>(rows), 0.5f);
      format_.multiply(*ops_, storage_of(bytes, rows, cols),
                       Tensor(const_cast<float*>(x.data()), DType::f32, {1, cols}),
                       Tensor(y.data(), DType::f32, {1, rows}), accumulate, scratch);
      for (size_t row = 0; row < y.size(); ++row) {
        double sum = accumulate == Accumulate::yes ? 0.5 : 0.0;
        double magnitude = sum;
        for (size_t i = 0; i < x.size(); ++i) {
          const double term = static_cast<double>(rotated[i]) *
                              static_cast<double>(model.codes[row * x.size() + i]) *
                              static_cast<double>(model.scales[row]);
          sum += term;
          magnitude += std::abs(term);
        }
        EXPECT_NEAR(y[row], sum, 1e-6 * magnitude) << rows << " x " << cols << ", row " << row;
      }
    }
    if (cols % 32 != 0) continue;
    expect_product_keeps_what_is_not_finite(*ops_, format_, storage_of(bytes, rows, cols));
  }
}

// The mean of n draws of a two-point distribution has at most the deviation step / (2 sqrt(n)), and
// a transform changes neither. What lies beyond the levels is cut off, here nothing.
TEST_F(Int4Hadamard, StochasticRoundingIsExpectedToBeExact) {
  const size_t cols = 512;
  const size_t draws = 1024;
  std::mt19937 random(12);
  std::uniform_real_distribution<float> even(-1.0f, 1.0f);
  Values rotated(cols);
  for (float& value : rotated) value = even(random);
  Values row = summed(rotated, 128);
  Values values;
  for (size_t draw = 0; draw < draws; ++draw) values.insert(values.end(), row.begin(), row.end());
  StepScalars scalars{};
  scalars.seed = 9;
  const Values out = rounded(values, draws, {true, &scalars, 55});
  const double deviation = static_cast<double>(coded(row, 1).scales[0]) / (2.0 * std::sqrt(draws));
  double total = 0.0;
  for (size_t c = 0; c < cols; ++c) {
    double sum = 0.0;
    for (size_t draw = 0; draw < draws; ++draw) sum += static_cast<double>(out[draw * cols + c]);
    const double bias = sum / static_cast<double>(draws) - static_cast<double>(row[c]);
    EXPECT_LE(std::abs(bias), 5.0 * deviation) << c;
    total += bias;
  }
  EXPECT_LE(std::abs(total), 4.0 * deviation * std::sqrt(static_cast<double>(cols)));
  scalars.step = 1;
  EXPECT_NE(rounded(values, draws, {true, &scalars, 55}), out);
}

// Rows that are encoded again and again from what they decode to keep their scales, and so all of
// their bytes; those that have grown get new ones, and those that are not finite show it; a step
// that is not finite changes nothing.
TEST_F(Int4Hadamard, UpdatesInPlaceDoNotMoveTheScales) {
  const int64_t rows = 8;
  const int64_t cols = 256;
  StepScalars scalars{};
  scalars.finite = 1;
  const Rounding in_place{.stochastic = false, .scalars = &scalars, .tensor = 1, .in_place = true};
  auto bytes = encode(*ops_, format_, normal_values(rows * cols, 13), rows);
  const auto again = [&](float factor) {
    Values values = decoded(bytes, rows, cols);
    for (float& value : values) value *= factor;
    Memory memory("host", make_host_backing(), 0);
    Arena scratch(memory, Purpose::workspace, int64_t{1} << 20);
    const Tensor matrix(values.data(), DType::f32, {rows, cols});
    format_.encode(
        *ops_, [&](int64_t begin, int64_t end) { return matrix.rows(begin, end); },
        storage_of(bytes, rows, cols), in_place, scratch);
  };
  const auto first = bytes;
  for (int i = 0; i < 20; ++i) again(1.0f);
  EXPECT_EQ(bytes, first);
  again(1.2f);
  EXPECT_NE(bytes, first);
  scalars.finite = 0;
  const auto grown = bytes;
  again(3.0f);
  EXPECT_EQ(bytes, grown);
  scalars.finite = 1;
  again(std::numeric_limits<float>::infinity());
  for (const float value : decoded(bytes, rows, cols)) EXPECT_FALSE(std::isfinite(value));
}

TEST_F(Int4Hadamard, DistortsAsLittleAsItShould) {
  const auto signal_to_noise = [&](const Values& values) {
    const Values out = rounded(values, 1024);
    double signal = 0.0;
    double noise = 0.0;
    for (size_t i = 0; i < values.size(); ++i) {
      const double value = static_cast<double>(values[i]);
      const double difference = static_cast<double>(out[i]) - value;
      signal += value * value;
      noise += difference * difference;
    }
    return 10.0 * std::log10(signal / noise);
  };
  Values values = normal_values(1 << 20, 14);
  EXPECT_GE(signal_to_noise(values), 19.2);  // 19.4 of sixteen even levels (Max 1960)
  for (size_t i = 0; i < values.size(); i += 512) values[i] *= 20.0f;
  EXPECT_GE(signal_to_noise(values), 18.3);  // outliers are spread over their blocks
}

TEST_F(Int4Hadamard, IsPlanned) {
  const auto plan = make_plan_ops(2, test_isa());
  const Storage nothing{Tensor(nullptr, DType::u8, {format_.storage_bytes(50, 130)}), 50, 130};
  Arena scratch = Arena::measuring();
  format_.encode(
      *plan,
      [](int64_t begin, int64_t end) {
        return Tensor(nullptr, DType::f32, {end - begin, 130});
      },
      nothing, {true, nullptr, 1}, scratch);
  format_.decode(*plan, nothing, 0, 50, Tensor(nullptr, DType::f32, {50, 130}));
  EXPECT_EQ(scratch.used(), 0);
  EXPECT_GE(scratch.high_water(), 50 * 130 * 4);
  EXPECT_LT(scratch.high_water(), 50 * 130 * 4 + 64);
}

}  // namespace
}  // namespace jackscrew
