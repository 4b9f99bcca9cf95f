// Quantises tensors to four bits after a Hadamard transform, with one step for all of a tensor,
// learned or from its mean magnitude: LSQ (Esser et al. 2020, arXiv 1902.08153) as Xi et al. 2023
// have it (arXiv 2306.11987, appendix A.4).
#pragma once

#include "kernels/step_scalars.h"
#include "quant/group_row.h"
#include "quant/hadamard_row.h"

namespace jackscrew {

// The block of the transform: fixed, or that with the least error once errors are known.
struct BlockChoice {
  int64_t fixed;        // until then, or for good
  const float* errors;  // [candidates], of blocks 1, 2, 4 ...; all 0 until known; null: fixed
  int64_t candidates;
  JACKSCREW_ROW int64_t block() const {
    if (errors == nullptr) return fixed;
    int64_t best = 0;
    for (int64_t i = 1; i < candidates; ++i) best = errors[i] < errors[best] ? i : best;
    return errors[best] > 0.0f ? int64_t{1} << best : fixed;
  }
};

// Which step is used: the learned one; in a run's first steps, and while none has been learned, the
// one that the mean magnitude gives.
struct StepChoice {
  const float* learned;  // its magnitude counts; 0: not yet; null: never
  const StepScalars* scalars;
  int64_t cold_steps;
  bool training;
  bool only_cold = false;  // a step is measured in the first steps only
  JACKSCREW_ROW bool is_cold() const { return training && scalars->step < cold_steps; }
  JACKSCREW_ROW bool is_learned() const {
    return learned != nullptr && *learned != 0.0f && !is_cold();
  }
  JACKSCREW_ROW bool is_measured() const { return only_cold ? is_cold() : !is_learned(); }
};

// sums[row] = the sum of the magnitudes of a transformed row; not written if the step is learned.
struct RotatedMagnitudes {
  static constexpr bool kShortLoops = true;
  const float* from;  // [rows, width], row stride from_stride
  double* sums;       // [rows]
  StepChoice step;
  BlockChoice choice;
  int64_t width, from_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (!step.is_measured()) return;
    const int64_t block = choice.block();
    double total = 0.0;
    for_transformed(
        team, from + row * from_stride, width, block, [&](int64_t, int64_t count, auto& v) {
          total += team.sum_f64(
              count, [&](int64_t i) { return static_cast<double>(__builtin_fabsf(v[i])); });
        });
    team.once([&] { sums[row] = total * static_cast<double>(orthonormal_factor(block)); });
  }
};
JACKSCREW_ROW_KERNEL(RotatedMagnitudes)

// *to = the step of a tensor of `elements` in `rows`: |learned|, or 2 mean / sqrt(7) + 1e-10.
// One row.
struct SettleStep {
  const double* sums;  // [rows], of RotatedMagnitudes
  float* to;
  StepChoice step;
  int64_t rows, elements;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    if (step.is_learned()) {
      team.once([&] { *to = __builtin_fabsf(*step.learned); });
      return;
    }
    if (!step.is_measured()) return;
    const double total = team.sum_f64(rows, [&](int64_t i) { return sums[i]; });
    const double mean = total / static_cast<double>(elements);
    const double root = __builtin_sqrt(static_cast<double>(kInt4Highest));
    team.once([&] { *to = static_cast<float>(2.0 * mean / root + 1e-10); });
  }
};
JACKSCREW_ROW_KERNEL(SettleStep)

// Quantises transformed rows in units of *step, rounded to nearest and clipped to [-8, 7].
struct QuantizeToStep {
  static constexpr bool kShortLoops = true;
  const float* from;   // [rows, width], row stride from_stride
  const float* step;   // of `from`
  const float* other;  // of the other operand, see scales; null: 1 for both
  int8_t* codes;       // [rows, width]; null: not wanted
  float* values;       // [rows, width], the codes as f32; null: not wanted
  float* scales;       // [rows, copies]: *step times *other, infinite where a number of the row is
                       // not finite; null: not wanted
  double* squares;     // [rows], sums of the squares of codes; null: not wanted
  BlockChoice choice;
  int64_t width, from_stride, copies;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t block = choice.block();
    const float factor = inverse_step(*step, orthonormal_factor(block));
    float largest = 0.0f;
    double sum = 0.0;
    for_transformed(
        team, from + row * from_stride, width, block, [&](int64_t at, int64_t count, auto& v) {
          largest = team.max(count, largest,
                             [&](int64_t i) { return nan_to_infinity(__builtin_fabsf(v[i])); });
          team.each(count, [&](int64_t i) {
            v[i] = round_to_integer(row_min(row_max(v[i] * factor, kInt4Lowest), kInt4Highest));
          });
          if (codes != nullptr) {
            put_bytes(team, codes + row * width + at, count,
                      [&](int64_t i) { return static_cast<int32_t>(v[i]); });
          }
          if (values != nullptr) {
            team.each(count, [&](int64_t i) { values[row * width + at + i] = v[i]; });
          }
          if (squares != nullptr) {
            sum += team.sum_f64(count, [&](int64_t i) { return static_cast<double>(v[i] * v[i]); });
          }
        });
    const float finite = other != nullptr ? *step * *other : 1.0f;
    const float scale = largest == __builtin_inff() ? largest : finite;
    if (scales != nullptr) team.each(copies, [&](int64_t i) { scales[row * copies + i] = scale; });
    if (squares != nullptr) team.once([&] { squares[row] = sum; });
  }
};
JACKSCREW_ROW_KERNEL(QuantizeToStep)

// The value of one unit of a product of codes: the other operand's step, times the unit of the
// gradient if that is in codes too.
struct ProductUnit {
  const float* step;
  const float* gradient;  // null: 1
  JACKSCREW_ROW float value() const { return gradient != nullptr ? *step * *gradient : *step; }
};

// The backward pass of QuantizeToStep: from the gradient of transformed rows, in units, to that of
// `from`. It is 0 where a number was clipped.
struct RotateBackToStep {
  static constexpr bool kShortLoops = true;
  const float* gradient;  // [rows, width]
  const float* from;      // [rows, width], row stride from_stride
  const float* step;
  float* to;  // [rows, width], row stride to_stride
  ProductUnit unit;
  BlockChoice choice;
  int64_t width, from_stride, to_stride;
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t block = choice.block();
    const float shrink = orthonormal_factor(block);
    const float factor = inverse_step(*step, shrink);
    const float scale = unit.value() * shrink;
    const float* in = gradient + row * width;
    float* out = to + row * to_stride;
    for_transformed(team, from + row * from_stride, width, block,
                    [&](int64_t at, int64_t count, auto& v) {
                      typename Team::template RowRegisters<float, kHadamardBlock> kept;
                      if (count < kHadamardBlock) {
                        team.each(kHadamardBlock, [&](int64_t i) { kept[i] = 0.0f; });
                      }
                      team.each(count, [&](int64_t i) {
                        const float value = v[i] * factor;
                        kept[i] = value < kInt4Lowest || value > kInt4Highest ? 0.0f : in[at + i];
                      });
                      team.hadamard(kept, block);
                      team.each(count, [&](int64_t i) {
                        const float value = kept[i] * scale;
                        out[at + i] = accumulate ? out[at + i] + value : value;
                      });
                    });
  }
};
JACKSCREW_ROW_KERNEL(RotateBackToStep)

// sums[row] = the sum of a gradient of transformed rows times the derivative of their rounding by
// the step: -8 or 7 where a number was clipped, else code - number / step.
struct StepGradientOfRows {
  static constexpr bool kShortLoops = true;
  const float* gradient;  // [rows, width]
  const float* from;      // [rows, width], row stride from_stride
  const float* step;
  double* sums;  // [rows]
  BlockChoice choice;
  int64_t width, from_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t block = choice.block();
    const float factor = inverse_step(*step, orthonormal_factor(block));
    const float* in = gradient + row * width;
    double total = 0.0;
    for_transformed(team, from + row * from_stride, width, block,
                    [&](int64_t at, int64_t count, auto& v) {
                      total += team.sum_f64(count, [&](int64_t i) {
                        const float value = v[i] * factor;
                        const float inside = round_to_integer(value) - value;
                        const float slope = value < kInt4Lowest    ? kInt4Lowest
                                            : value > kInt4Highest ? kInt4Highest
                                                                   : inside;
                        return static_cast<double>(in[at + i]) * static_cast<double>(slope);
                      });
                    });
    team.once([&] { sums[row] = total; });
  }
};
JACKSCREW_ROW_KERNEL(StepGradientOfRows)

// *to += the gradient of a learned step: the total of the rows in units, times 1 / sqrt(7
// elements). One row.
struct AddStepGradient {
  const double* sums;  // [rows]
  float* to;
  ProductUnit unit;
  StepChoice step;
  int64_t rows, elements;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    if (!step.is_learned()) return;
    const double total = team.sum_f64(rows, [&](int64_t i) { return sums[i]; });
    const double of_all = static_cast<double>(kInt4Highest) * static_cast<double>(elements);
    const double sign = *step.learned < 0.0f ? -1.0 : 1.0;
    const double value = sign * total * static_cast<double>(unit.value()) / __builtin_sqrt(of_all);
    team.once([&] { *to += static_cast<float>(value); });
  }
};
JACKSCREW_ROW_KERNEL(AddStepGradient)

// In a run's first steps: sums [2] += *value times its weight, and the weight. One row.
struct AddStepStart {
  const float* value;
  float* sums;
  StepChoice step;
  float weight;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    if (!step.is_cold()) return;
    team.once([&] {
      sums[0] += *value * weight;
      sums[1] += weight;
    });
  }
};
JACKSCREW_ROW_KERNEL(AddStepStart)

// sums[row] = the sum of the squared errors of rounding a row to *step; in a run's first steps.
struct RoundingErrors {
  static constexpr bool kShortLoops = true;
  const float* from;  // [rows, width], row stride from_stride
  const float* step;
  double* sums;  // [rows]
  StepChoice while_cold;
  int64_t block, width, from_stride;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (!while_cold.is_cold()) return;
    const float factor = inverse_step(*step, orthonormal_factor(block));
    double total = 0.0;
    for_transformed(
        team, from + row * from_stride, width, block, [&](int64_t, int64_t count, auto& v) {
          total += team.sum_f64(count, [&](int64_t i) {
            const float value = v[i] * factor;
            const float code = round_to_integer(row_min(row_max(value, kInt4Lowest), kInt4Highest));
            const double error = static_cast<double>(code) - static_cast<double>(value);
            return error * error;
          });
        });
    const double unit = static_cast<double>(*step);
    team.once([&] { sums[row] = total * unit * unit; });
  }
};
JACKSCREW_ROW_KERNEL(RoundingErrors)

// In a run's first steps, for each block: adds to row 0 of sums [2, candidates] the root of the
// mean squared errors of x and W multiplied, times `weight`, and to row 1 `weight`. A row of the
// kernel is a block.
struct AddBlockStart {
  const double* of_w;  // [candidates, w_rows]
  const double* of_x;  // [candidates, x_rows]
  float* sums;
  StepChoice while_cold;
  int64_t candidates, w_rows, x_rows, width;
  float weight;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (!while_cold.is_cold()) return;
    const double w = team.sum_f64(w_rows, [&](int64_t i) { return of_w[row * w_rows + i]; });
    const double x = team.sum_f64(x_rows, [&](int64_t i) { return of_x[row * x_rows + i]; });
    const double mean_w = w / static_cast<double>(w_rows * width);
    const double mean_x = x / static_cast<double>(x_rows * width);
    // A root, as of norms, for the range of f32. An error of 0 would mean that none is known yet.
    const auto error = static_cast<float>(__builtin_sqrt(mean_w * mean_x) + 1e-30);
    team.once([&] {
      sums[row] += error * weight;
      sums[candidates + row] += weight;
    });
  }
};
JACKSCREW_ROW_KERNEL(AddBlockStart)

}  // namespace jackscrew
