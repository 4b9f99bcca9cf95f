#include "learners/dora_slot.h"

#include <algorithm>
#include <vector>

#include "learners/decoded_panels.h"
#include "learners/dora.rows.h"
#include "products/dense.h"

namespace jackscrew {

DoraSlot::DoraSlot(const LearnerContext& context, const Weight& weight,
                   const LoraSettings& settings, const LoraShape& shape, double& zero_rows)
    : LoraSlot(context, weight, settings, shape),
      weight_(weight),
      magnitude_(context, part_name(weight, "lora_magnitude_vector"), {weight.rows()}),
      squares_(context.memory, Purpose::workspace, DType::f32, {weight.rows()}),
      factors_(context.memory, Purpose::workspace, DType::f32, {weight.rows()}) {
  Context run{context.ops, context.scratch, context.scalars};
  begin(run);
  measure(run);
  if (run.ops.plans_only()) return;
  std::vector<float> lengths(static_cast<size_t>(weight.rows()));
  run.ops.copy(Tensor(lengths.data(), DType::f32, {weight.rows()}), magnitude_.value());
  zero_rows += static_cast<double>(std::ranges::count(lengths, 0.0f));
}

void DoraSlot::forward(Context& context, const Operand& operand, const Tensor& y,
                       Accumulate accumulate) {
  LoraSlot::forward(context, operand, y, accumulate);
  context.ops.launch(ScaleColumns<float>{y.data<float>(), factors_.view().data<float>(),
                                         y.data<float>(), y.cols()},
                     y.rows());
}

Tensor DoraSlot::product_gradient(Context& context, const Tensor& dy) const {
  const Tensor out = context.scratch.tensor(dy.dtype(), {dy.rows(), dy.cols()});
  with_activation(dy.dtype(), [&]<class Activation>(Activation) {
    context.ops.launch(
        ScaleColumns<Activation>{dy.data<Activation>(), factors_.view().data<float>(),
                                 out.data<Activation>(), dy.cols()},
        dy.rows());
  });
  return out;
}

// The product's gradient is g.dy = dy ∘ m / n. With u = x Wᵀ + scale * dropout(x) Aᵀ Bᵀ the
// gradient of m is the sum over tokens of dy ∘ u / n, which is that of g.dy ∘ u over m.
void DoraSlot::add_b(const Gradient& g, const Tensor& thin) {
  Context& context = g.context();
  const Arena::Frame frame(context.scratch);
  const Tensor dots = context.scratch.tensor(DType::f32, {weight_.rows()});
  context.ops.zero(dots);
  g.add_scale(dots);
  const Tensor d = context.scratch.tensor(DType::f32, {weight_.rows(), rank()});
  context.ops.gemm(g.dy, Transpose::yes, thin, Transpose::no, d, Accumulate::no);
  context.ops.launch(DoraGradient{d.data<float>(), b().value().data<float>(), dots.data<float>(),
                                  magnitude_.value().data<float>(), b().gradient().data<float>(),
                                  magnitude_.gradient().data<float>(), rank()},
                     weight_.rows());
}

void DoraSlot::apply(Context& context, double weight_decay) {
  LoraSlot::apply(context, weight_decay);
  // Lengths take no weight decay. Their learning rate is B's, as with PEFT's LoRA+.
  magnitude_.apply(context, b_rate(), 0.0);
  measure(context);
}

void DoraSlot::visit(const StateVisitor& visitor) const {
  LoraSlot::visit(visitor);
  magnitude_.visit(visitor);
}

void DoraSlot::restored(Context& context) {
  measure(context);
}

// Measures the norms of W's rows. m starts as these, for B is 0.
void DoraSlot::begin(Context& context) const {
  for_decoded_panels(context, weight_, [&](const Tensor& values, int64_t begin, int64_t end) {
    context.ops.launch(RowNorms{values.data<float>(), squares_.view().data<float>() + begin,
                                magnitude_.value().data<float>() + begin, weight_.cols()},
                       end - begin);
  });
}

// Computes m / n. The squared norm of row j of W + s B A is |W_j|² + 2 s B_j (W_j Aᵀ)ᵀ +
// s² B_j (A Aᵀ) B_jᵀ, which takes one thin product with W.
void DoraSlot::measure(Context& context) const {
  const Arena::Frame frame(context.scratch);
  const int64_t rows = weight_.rows();
  const Tensor& a_value = a().value();
  const Tensor thin = context.scratch.tensor(DType::f32, {rank(), rows});  // A Wᵀ
  f32_product().forward(context, f32_product().prepare(context, a_value), weight_, thin,
                        Accumulate::no);
  const Tensor squared = context.scratch.tensor(DType::f32, {rank(), rank()});
  context.ops.gemm(a_value, Transpose::no, a_value, Transpose::yes, squared, Accumulate::no);
  const Tensor mixed = context.scratch.tensor(DType::f32, {rows, rank()});
  context.ops.gemm(b().value(), Transpose::no, squared, Transpose::no, mixed, Accumulate::no);
  context.ops.launch(
      DoraFactors{squares_.view().data<float>(), thin.data<float>(), mixed.data<float>(),
                  b().value().data<float>(), magnitude_.value().data<float>(),
                  factors_.view().data<float>(), rows, rank(), scale()},
      rows);
}

}  // namespace jackscrew
