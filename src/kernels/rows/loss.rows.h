// Softmax cross-entropy and reductions over whole tensors.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "kernels/row_operands.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

// The largest element of a row and the sum of e^(x - largest).
struct Exponentials {
  float largest;
  double sum;  // in double: a vocabulary is long enough for the error of a float sum to show
};
template <class Team>
JACKSCREW_ROW Exponentials sum_exponentials(const Team& team, const float* x, int64_t n) {
  if constexpr (Team::kHasExponentials) {
    Exponentials out;
    team.exponentials(
        x, n, [](float value) { return row_exp(value); }, out.largest, out.sum);
    return out;
  } else {
    const float largest = team.max(n, -3.0e38f, [&](int64_t i) { return x[i]; });
    const double sum =
        team.sum_f64(n, [&](int64_t i) { return static_cast<double>(row_exp(x[i] - largest)); });
    return {largest, sum};
  }
}

// loss = logsumexp(logits) - logits[target] and, unless `scalars` is null (evaluation), its
// gradient (softmax - onehot) * inverse_targets.
template <class Activation>
struct SoftmaxCrossEntropy {
  const float* logits;         // [rows, vocab]
  const int32_t* targets;      // [rows], each in [0, vocab)
  float* losses;               // [rows]
  Activation* dlogits;         // [rows, vocab]; may be the logits
  const StepScalars* scalars;  // null: loss only
  int64_t vocab;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const float* x = logits + row * vocab;
    const int32_t target = targets[row];
    const float target_logit = x[target];
    const Exponentials exponentials = sum_exponentials(team, x, vocab);
    const float maximum = exponentials.largest;
    const float total = static_cast<float>(exponentials.sum);
    team.once([&] { losses[row] = maximum - target_logit + __builtin_logf(total); });
    if (scalars == nullptr) return;
    const float factor = scalars->inverse_targets;
    const float scale = factor / total;
    const float dtarget = row_exp(target_logit - maximum) * scale - factor;
    Activation* d = dlogits + row * vocab;
    team.elementwise(
        vocab, [&](float logit, float& out) { out = row_exp(logit - maximum) * scale; }, reads(x),
        writes(d));
    team.once([&] { d[target] = from_float<Activation>(dtarget); });
  }
};
using SoftmaxCrossEntropyF32 = SoftmaxCrossEntropy<float>;
using SoftmaxCrossEntropyBf16 = SoftmaxCrossEntropy<bf16>;
JACKSCREW_ROW_KERNEL(SoftmaxCrossEntropyF32)
JACKSCREW_ROW_KERNEL(SoftmaxCrossEntropyBf16)

// *total += the sum of x; the calls add in order. One row.
struct SumInto {
  const float* x;  // [count]
  double* total;
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const double sum = team.sum_f64(count, [&](int64_t i) { return static_cast<double>(x[i]); });
    team.once([&] { *total += sum; });
  }
};
JACKSCREW_ROW_KERNEL(SumInto)

// partial[row] = sum of squares of chunk `row` of x.
struct SquaredNormChunks {
  static constexpr bool kBatched = true;
  static constexpr int64_t kChunk = 16384;
  const float* x;   // [count]
  double* partial;  // [chunks]
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t begin = row * kChunk;
    const int64_t size = count - begin < kChunk ? count - begin : kChunk;
    const double sum = team.sum_f64(size, [&](int64_t i) {
      return static_cast<double>(x[begin + i]) * static_cast<double>(x[begin + i]);
    });
    team.once([&] { partial[row] = sum; });
  }
};
JACKSCREW_ROW_KERNEL(SquaredNormChunks)

// *total = sum of parts. One row.
struct SumOf {
  static constexpr bool kBatched = true;
  const double* parts;  // [count]
  double* total;
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const double sum = team.sum_f64(count, [&](int64_t i) { return parts[i]; });
    team.once([&] { *total = sum; });
  }
};
JACKSCREW_ROW_KERNEL(SumOf)

// scalars->squares += each of the sums in order, so that several calls give the same as one. One
// row.
struct AddSquares {
  const double* sums;  // [count], each of one gradient
  StepScalars* scalars;
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    team.once([&] {
      double squares = scalars->squares;
      for (int64_t i = 0; i < count; ++i) squares += sums[i];
      scalars->squares = squares;
    });
  }
};
JACKSCREW_ROW_KERNEL(AddSquares)

// Computes the norm, the clipping factor, the loss and the finite flag from the squares and losses
// of the whole step. One row.
struct FinishNorm {
  StepScalars* scalars;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    team.once([&] {
      // Where weights are updated in backward, this step may have been found not to be finite.
      const bool ended = scalars->finite == 0;
      if (ended && scalars->last_step != scalars->step) return;
      const float norm = static_cast<float>(__builtin_sqrt(scalars->squares));
      const bool bad = ended || !(norm <= 3.4e38f) || !(scalars->loss_sum <= 1.0e300);
      scalars->loss = scalars->loss_sum / (scalars->targets > 1.0 ? scalars->targets : 1.0);
      scalars->last_step = scalars->step;
      scalars->grad_norm = norm;
      scalars->clip_scale = clip_scale(norm, scalars->max_grad_norm);
      scalars->finite = bad ? 0 : 1;
    });
  }
};
JACKSCREW_ROW_KERNEL(FinishNorm)

// y += factor * x. A row of the kernel is a chunk.
struct AddScaled {
  static constexpr int64_t kChunk = 16384;
  const float* x;  // [count]
  float* y;        // [count]
  float factor;
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t begin = row * kChunk;
    const int64_t size = count - begin < kChunk ? count - begin : kChunk;
    team.elementwise(
        size, [&](float value, float& sum) { sum += factor * value; }, reads(x + begin),
        updates(y + begin));
  }
};
JACKSCREW_ROW_KERNEL(AddScaled)

}  // namespace jackscrew
