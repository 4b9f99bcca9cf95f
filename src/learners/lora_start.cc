#include "learners/lora_start.h"

#include <algorithm>
#include <vector>

#include "base/philox.h"
#include "kernels/add_scaled.h"
#include "learners/decoded_panels.h"
#include "optim/squares.h"

namespace jackscrew {

namespace {

Context start_context(const LearnerContext& context) {
  return {context.ops, context.scratch, context.scalars};
}

// to += factor * b a
void add_factors(Context& context, const Tensor& to, const LoraFactors& factors, double factor) {
  const Arena::Frame frame(context.scratch);
  const Tensor scaled = context.scratch.tensor(DType::f32, {factors.b.rows(), factors.b.cols()});
  context.ops.zero(scaled);
  add_scaled(context.ops, scaled, factors.b, factor);
  context.ops.gemm(scaled, Transpose::no, factors.a, Transpose::no, to, Accumulate::yes);
}

// Adds to scale * b a the projection of `values`, [out, in], onto the columns of b, which are
// orthogonal. Changes a only. A projection onto the rows of a would do where every weight is
// rounded by itself. With GPTQ and EXL2 the errors of a row make up for each other, which keeps the
// error of a product small: this projection mixes whole rows of errors, so that they still do.
void add_projection(Context& context, const Tensor& values, const LoraFactors& factors) {
  const Arena::Frame frame(context.scratch);
  const int64_t rank = factors.b.cols(), rows = factors.b.rows();
  std::vector<float> b(static_cast<size_t>(rows * rank));
  context.ops.copy(Tensor(b.data(), DType::f32, {rows, rank}), factors.b);
  std::vector<float> inverse(static_cast<size_t>(rank * rank));  // of scale bᵀ b, which is diagonal
  for (int64_t i = 0; i < rank; ++i) {
    double square = 0.0;
    for (int64_t row = 0; row < rows; ++row) {
      const double x = b[static_cast<size_t>(row * rank + i)];
      square += x * x;
    }
    if (square > 0.0) {
      inverse[static_cast<size_t>(i * rank + i)] =
          static_cast<float>(1.0 / (factors.scale * square));
    }
  }
  const Tensor diagonal = context.scratch.tensor(DType::f32, {rank, rank});
  context.ops.copy(diagonal, Tensor(inverse.data(), DType::f32, {rank, rank}));
  const Tensor along = context.scratch.tensor(DType::f32, {rank, values.cols()});
  context.ops.gemm(factors.b, Transpose::yes, values, Transpose::no, along, Accumulate::no);
  context.ops.gemm(diagonal, Transpose::no, along, Transpose::no, factors.a, Accumulate::yes);
}

// values -= the stored weight: turns the original values into the rounding error.
void subtract_stored(Context& context, const Weight& weight, const Tensor& values) {
  for_decoded_panels(context, weight, [&](const Tensor& stored, int64_t begin, int64_t end) {
    add_scaled(context.ops, values.rows(begin, end), stored, -1.0);
  });
}

Tensor matrix_like(Context& context, const Weight& weight) {
  return context.scratch.tensor(DType::f32, {weight.rows(), weight.cols()});
}

}  // namespace

void begin_by_loftq(const LearnerContext& context, const Weight& weight, const LoraFactors& adapter,
                    RoundingSquares& squares) {
  Context run = start_context(context);
  const Arena::Frame frame(run.scratch);
  const Tensor values = matrix_like(run, weight);
  context.original(weight, values);
  squares.weights += squared_norm(run, values);
  subtract_stored(run, weight, values);
  const double rounding_error = squared_norm(run, values);
  const double recovered =
      approximate(run, values, context.seed, name_hash(weight.name().c_str()), adapter);
  squares.rounding_error += rounding_error;
  squares.residual += std::max(0.0, rounding_error - recovered);
}

void begin_by_pissa(const LearnerContext& context, const Weight& weight, bool original,
                    const LoraFactors& adapter, const LoraFactors& initial,
                    RoundingSquares& squares) {
  Context run = start_context(context);
  const Arena::Frame frame(run.scratch);
  const Tensor values = matrix_like(run, weight);
  weight.decode(run.ops, 0, weight.rows(), values);
  approximate(run, values, context.seed, name_hash(weight.name().c_str()), initial);
  run.ops.copy(adapter.a, initial.a);
  run.ops.copy(adapter.b, initial.b);
  if (!original) return;
  context.original(weight, values);
  squares.weights += squared_norm(run, values);
  subtract_stored(run, weight, values);
  squares.rounding_error += squared_norm(run, values);
  add_projection(run, values, adapter);
  add_factors(run, values, adapter, -adapter.scale);
  add_factors(run, values, initial, initial.scale);
  squares.residual += squared_norm(run, values);
}

}  // namespace jackscrew
