// A gradient as two numbers of four bits for each of its own, and the sampling of their rows by
// leverage scores (Xi et al. 2023, arXiv 2306.11987, section 4; methods.md 2.3).
#pragma once

#include "kernels/row_count.h"
#include "kernels/step_scalars.h"
#include "quant/group_row.h"

namespace jackscrew {

// Of 14 bins of the high number each has 14 of the low one: the largest magnitude is 98 of these.
inline constexpr float kSplitBins = 14.0f;
inline constexpr float kSplitSteps = 98.0f;

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

// *unit = what one low bin of a gradient is worth. One row.
struct UnitOfSplit {
  const float* maxima;  // [rows]
  float* unit;
  int64_t rows;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const float largest = team.max(rows, 0.0f, [&](int64_t i) { return maxima[i]; });
    team.once([&] { *unit = largest / kSplitSteps; });
  }
};
JACKSCREW_ROW_KERNEL(UnitOfSplit)

// How the rows of a gradient are split. The random numbers are a function of seed, step, tensor,
// token and column.
struct Split {
  const float* from;  // [rows, width], row stride from_stride
  const float* unit;
  const StepScalars* scalars;
  RowCount rows;
  int64_t width, from_stride;
  uint32_t tensor;
  float limit;  // of either number: 6 as published, where the low one is cut off, or 7

  // Calls f(column, high, low) for a row: the high number to nearest, the low one stochastically.
  template <class Team, class F>
  JACKSCREW_ROW void for_row(const Team& team, int64_t row, const F& f) const {
    const float* in = from + row * from_stride;
    const float divisor = *unit > 0.0f ? *unit : 1.0f;
    const RandomStream stream =
        RandomStream::make(scalars->seed, RandomPurpose::gradient_rounding, scalars->step, tensor);
    const auto blocks = static_cast<uint64_t>((width + 63) / 64);
    team.each_random(stream, static_cast<uint64_t>(rows.of(row)) * blocks, width,
                     [&](int64_t i, uint32_t bits) {
                       // A quotient, which no compiler fuses with the difference: the same codes
                       // everywhere.
                       const float value = in[i] / divisor;
                       const float high = round_to_integer(within(value / kSplitBins));
                       const float rest = value - kSplitBins * high;
                       const float uniform = RandomStream::uniform_of(bits);
                       f(i, high, within(round_to_integer(rest, uniform)));
                     });
  }

 private:
  // NaN becomes a code as well: the unit tells of it.
  JACKSCREW_ROW float within(float value) const { return row_min(row_max(value, -limit), limit); }
};

// The squares of the high numbers of a row, in units of the low ones, and of the low ones.
struct SplitSquares {
  Split split;
  double* squares;  // [2, count]
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    // Whole numbers: in f32 exact for some 300,000 columns.
    typename Team::template Sums<64> high_sums, low_sums;
    split.for_row(team, row, [&](int64_t i, float high, float low) {
      high_sums[i % 64] += high * high;
      low_sums[i % 64] += low * low;
    });
    const auto high = static_cast<double>(team.total(high_sums));
    const auto low = static_cast<double>(team.total(low_sums));
    const double bins = static_cast<double>(kSplitBins * kSplitBins);
    team.once([&] {
      squares[row] = high * bins;
      squares[count + row] = low;
    });
  }
};
JACKSCREW_ROW_KERNEL(SplitSquares)

// How probable it is that a row is kept: as its share of the scores, of which `count` are expected
// to be; what would exceed 1 goes to the others. One row.
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
    // Every round settles a row, so that this ends.
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

// Both numbers of a gradient as one, in units of the low one: whole, but where a row that was
// sampled counts by the inverse of its probability.
struct JoinSplit {
  Split split;
  const float* probabilities;  // [2, count]; null: all rows are kept
  float* to;                   // [count, width]
  int64_t count;
  uint32_t sampling;  // the tensor of its random numbers
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const RandomStream stream = RandomStream::make(
        split.scalars->seed, RandomPurpose::gradient_rounding, split.scalars->step, sampling);
    const auto weight = [&](int64_t half) {
      if (probabilities == nullptr) return 1.0f;
      const float p = probabilities[half * count + row];
      const auto index = static_cast<uint64_t>(2 * split.rows.of(row) + half);
      return stream.uniform(index) < p ? 1.0f / p : 0.0f;
    };
    const float of_high = kSplitBins * weight(0);
    const float of_low = weight(1);
    float* out = to + row * split.width;
    split.for_row(team, row, [&](int64_t i, float high, float low) {
      out[i] = high * of_high + low * of_low;
    });
  }
};
JACKSCREW_ROW_KERNEL(JoinSplit)

}  // namespace jackscrew
