// Splits each number of a gradient into two of four bits, and samples their rows by leverage scores
// (Xi et al. 2023, arXiv 2306.11987, section 4).
#pragma once

#include "kernels/row_count.h"
#include "kernels/step_scalars.h"
#include "quant/group_row.h"

namespace jackscrew {

// The high number has 14 bins, of 14 bins of the low number each: the largest magnitude is 98 low
// bins.
inline constexpr float kSplitBins = 14.0f;
inline constexpr float kLargestInLowBins = 98.0f;

// maxima[row] = the largest magnitude; infinite where a number is not finite.
struct LargestOfRows {
  static constexpr bool kShortLoops = true;
  const float* from;  // [rows, width], row stride from_stride
  float* maxima;      // [rows]
  int64_t width, from_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float largest = largest_magnitude(team, from + row * from_stride, width);
    team.once([&] { maxima[row] = largest; });
  }
};
JACKSCREW_ROW_KERNEL(LargestOfRows)

// *unit = the value of one low bin of a gradient. One row.
struct UnitOfSplit {
  const float* maxima;  // [rows]
  float* unit;
  int64_t rows;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const float largest = team.max(rows, 0.0f, [&](int64_t i) { return maxima[i]; });
    team.once([&] { *unit = largest / kLargestInLowBins; });
  }
};
JACKSCREW_ROW_KERNEL(UnitOfSplit)

// Writes the codes of both numbers of every element, the high one rounded to nearest, the low one
// stochastically, and the sums of squares of their rows, those of the high ones in units of the low
// ones. The random numbers are a function of seed, step, tensor, token and column.
struct SplitRows {
  static constexpr bool kShortLoops = true;
  const float* from;  // [count, width], row stride from_stride
  const float* unit;
  int8_t* codes;    // [2, count, width]
  double* squares;  // [2, count]
  const StepScalars* scalars;
  RowCount rows;
  int64_t count, width, from_stride;
  uint32_t tensor;
  float limit;  // of either number: 6 as published, where the low one is clipped, or 7
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float divisor = *unit > 0.0f ? *unit : 1.0f;
    const RandomStream stream =
        RandomStream::make(scalars->seed, RandomPurpose::gradient_rounding, scalars->step, tensor);
    const int64_t blocks = (width + 63) / 64;
    const auto first = static_cast<uint64_t>(rows.of(row) * blocks);
    int8_t* to_high = codes + row * width;
    int8_t* to_low = to_high + count * width;
    // Integers: exact in f32 for some 300,000 columns.
    typename Team::template Sums<64> high_sums, low_sums;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t at = 64 * block;
      const int64_t part = width - at < 64 ? width - at : 64;
      const float* in = from + row * from_stride + at;
      const auto random = team.sixty_four(stream, first + static_cast<uint64_t>(block));
      typename Team::template RowRegisters<int32_t, 64> high_codes, low_codes;
      team.each(part, [&](int64_t i) {
        // A quotient, which no compiler fuses with the difference: the same codes everywhere.
        const float value = in[i] / divisor;
        const float high = round_to_integer(clamp_to_codes(value / kSplitBins));
        const float rest = value - kSplitBins * high;
        const float low =
            clamp_to_codes(round_to_integer(rest, RandomStream::uniform_of(random[i])));
        high_sums[i] += high * high;
        low_sums[i] += low * low;
        high_codes[i] = static_cast<int32_t>(high);
        low_codes[i] = static_cast<int32_t>(low);
      });
      team.each(part, [&](int64_t i) { to_high[at + i] = static_cast<int8_t>(high_codes[i]); });
      team.each(part, [&](int64_t i) { to_low[at + i] = static_cast<int8_t>(low_codes[i]); });
    }
    const auto high = static_cast<double>(team.total(high_sums));
    const auto low = static_cast<double>(team.total(low_sums));
    team.once([&] {
      squares[row] = high * static_cast<double>(kSplitBins * kSplitBins);
      squares[count + row] = low;
    });
  }

 private:
  // NaN becomes a code as well: the unit shows it.
  JACKSCREW_ROW float clamp_to_codes(float value) const {
    return row_min(row_max(value, -limit), limit);
  }
};
JACKSCREW_ROW_KERNEL(SplitRows)

// The probability that a row is kept: proportional to its leverage score, so that `count` rows are
// expected; what would exceed 1 goes to the others. One row.
struct LeverageProbabilities {
  const double* squares;       // [2, count], of rows of the gradient
  const double* of_the_other;  // [count], of rows of x; null: 1
  float* probabilities;        // [2, count]
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const int64_t all = 2 * count;
    const auto score = [&](int64_t i) {
      const double other = of_the_other != nullptr ? of_the_other[i < count ? i : i - count] : 1.0;
      return __builtin_sqrt(squares[i] * other);
    };
    float* p = probabilities;
    const double total = team.sum_f64(all, score);
    const double scale = total > 0.0 ? static_cast<double>(count) / total : 0.0;
    team.each(all, [&](int64_t i) { p[i] = static_cast<float>(score(i) * scale); });
    // Every round settles at least one row, so that this ends.
    for (int64_t settled = 0; settled < count;) {
      if (!(team.max(all, 0.0f, [&](int64_t i) { return p[i]; }) > 1.0f)) break;
      settled = static_cast<int64_t>(
          team.sum_f64(all, [&](int64_t i) { return p[i] < 1.0f ? 0.0 : 1.0; }));
      const double rest = team.sum_f64(
          all, [&](int64_t i) { return p[i] < 1.0f ? static_cast<double>(p[i]) : 0.0; });
      const float grows =
          rest > 0.0 ? static_cast<float>(static_cast<double>(count - settled) / rest) : 0.0f;
      team.each(all, [&](int64_t i) { p[i] = p[i] < 1.0f ? p[i] * grows : 1.0f; });
    }
  }
};
JACKSCREW_ROW_KERNEL(LeverageProbabilities)

// Joins both numbers of a gradient into one, in units of the low one: an integer, except where
// sampled rows are weighted by the inverse of their probability.
struct JoinSplit {
  static constexpr bool kShortLoops = true;
  const int8_t* codes;         // [2, count, width]
  const float* probabilities;  // [2, count]; null: all rows are kept
  float* to;                   // [count, width]
  const StepScalars* scalars;
  RowCount rows;
  int64_t count, width;
  uint32_t tensor;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const RandomStream stream =
        RandomStream::make(scalars->seed, RandomPurpose::gradient_rounding, scalars->step, tensor);
    const auto weight = [&](int64_t half) {
      if (probabilities == nullptr) return 1.0f;
      const float p = probabilities[half * count + row];
      const auto index = static_cast<uint64_t>(2 * rows.of(row) + half);
      return stream.uniform(index) < p ? 1.0f / p : 0.0f;
    };
    const float of_high = kSplitBins * weight(0);
    const float of_low = weight(1);
    const int8_t* high = codes + row * width;
    float* out = to + row * width;
    team.each_byte(high, width,
                   [&](int64_t i, int32_t code) { out[i] = of_high * static_cast<float>(code); });
    team.each_byte(high + count * width, width,
                   [&](int64_t i, int32_t code) { out[i] += of_low * static_cast<float>(code); });
  }
};
JACKSCREW_ROW_KERNEL(JoinSplit)

}  // namespace jackscrew
