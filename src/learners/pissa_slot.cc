#include "learners/pissa_slot.h"

#include "kernels/add_scaled.h"
#include "quant/plain.h"

namespace jackscrew {

PissaSlot::PissaSlot(const LearnerContext& context, const Weight& weight,
                     const LoraSettings& settings, const LoraShape& shape, RoundingSquares& squares)
    : LoraSlot(context, weight, settings, shape),
      initial_a_(context.memory, Purpose::adapters, DType::f32, {shape.rank, weight.cols()}),
      initial_b_(context.memory, Purpose::adapters, DType::f32, {weight.rows(), shape.rank}) {
  const LoraFactors initial{initial_a_.view(), initial_b_.view(), shape.scale};
  begin_by_pissa(context, weight, settings.rounds(), factors(), initial, squares);
  Context run{context.ops, context.scratch, context.scalars};
  add_scaled(run.ops, initial.b, initial.b, -2.0);  // from B₀ to -B₀, exactly
}

void PissaSlot::forward(Context& context, const Operand& operand, const Tensor& y,
                        Accumulate accumulate) {
  const Arena::Frame frame(context.scratch);
  if (y.dtype() != DType::f32) {
    // The two terms nearly cancel: they are rounded once, together.
    const Tensor sum = context.scratch.tensor(DType::f32, {y.rows(), y.cols()});
    if (accumulate == Accumulate::yes) convert_to_f32(context.ops, y, sum);
    forward(context, operand, sum, accumulate);
    convert_to_bf16(context.ops, sum, y);
    return;
  }
  LoraSlot::forward(context, operand, y, accumulate);
  const Tensor& x = operand.x;
  const Tensor thin =
      scaled_product(context, x, converted(context, initial_a_.view(), x.dtype()), Transpose::yes);
  context.ops.gemm(thin, Transpose::no, converted(context, initial_b_.view(), x.dtype()),
                   Transpose::yes, y, Accumulate::yes);
}

void PissaSlot::backward(const Gradient& g, const Tensor* dx) {
  LoraSlot::backward(g, dx);
  if (dx == nullptr) return;
  Context& context = g.context();
  const Arena::Frame frame(context.scratch);
  const Tensor thin = scaled_product(
      context, g.dy, converted(context, initial_b_.view(), g.dy.dtype()), Transpose::no);
  context.ops.gemm(thin, Transpose::no, converted(context, initial_a_.view(), thin.dtype()),
                   Transpose::no, *dx, Accumulate::yes);
}

void PissaSlot::visit(const StateVisitor& visitor) const {
  LoraSlot::visit(visitor);
  const auto constant = [&](const Factor& learned, const OwnedTensor& initial, int along) {
    visitor({.name = learned.name() + ".initial",
             .role = StateRole::constant,
             .view = initial.view(),
             .save = true,
             .joins = learned.name(),
             .joins_along = along});
  };
  constant(a(), initial_a_, 0);
  constant(b(), initial_b_, 1);
}

}  // namespace jackscrew
