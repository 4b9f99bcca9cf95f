#include "learners/lora_slot.h"

#include <cmath>

#include "learners/lora.rows.h"
#include "quant/plain.h"

namespace jackscrew {

LoraSlot::LoraSlot(const LearnerContext& context, const Weight& weight,
                   const LoraSettings& settings, const LoraShape& shape)
    : scale_(static_cast<float>(shape.scale)),
      dropout_(static_cast<float>(settings.dropout())),
      b_rate_(settings.b_learning_rate_ratio()),
      tensor_(name_hash(weight.name().c_str())),
      a_(context, part_name(weight, "lora_A.weight"), {shape.rank, weight.cols()}),
      b_(context, part_name(weight, "lora_B.weight"), {weight.rows(), shape.rank}) {
  // As in PEFT: A like torch's default for a linear layer (uniform, bound 1 / sqrt(in)), B zero.
  const float bound = 1.0f / std::sqrt(static_cast<float>(weight.cols()));
  context.ops.launch(LoraInit{a_.value().data<float>(), context.seed, weight.cols(),
                              name_hash(a_.name().c_str()), bound},
                     shape.rank);
}

std::string LoraSlot::part_name(const Weight& weight, const char* part) {
  return weight.spec().path() + "." + part;
}

void LoraSlot::forward(Context& context, const Operand& operand, const Tensor& y,
                       Accumulate accumulate) {
  const Arena::Frame frame(context.scratch);
  const Tensor x = dropped(context, operand.x);
  const Tensor thin =
      scaled_product(context, x, converted(context, a_.value(), x.dtype()), Transpose::yes);
  context.ops.gemm(thin, Transpose::no, converted(context, b_.value(), x.dtype()), Transpose::yes,
                   y, accumulate);
}

void LoraSlot::backward(const Gradient& g, const Tensor* dx) {
  Context& context = g.context();
  const Arena::Frame frame(context.scratch);
  const Tensor x = dropped(context, g.x);  // [tokens, in]
  const Tensor a = converted(context, a_.value(), x.dtype());
  const Tensor b = converted(context, b_.value(), x.dtype());
  add_b(g, scaled_product(context, x, a, Transpose::yes));
  const Tensor dthin = scaled_product(context, g.dy, b, Transpose::no);
  context.ops.gemm(dthin, Transpose::yes, x, Transpose::no, a_.gradient(), Accumulate::yes);
  if (dx == nullptr) return;
  if (!drops(context)) {
    context.ops.gemm(dthin, Transpose::no, a, Transpose::no, *dx, Accumulate::yes);
    return;
  }
  const Tensor branch = context.scratch.tensor(dx->dtype(), {x.rows(), x.cols()});
  context.ops.gemm(dthin, Transpose::no, a, Transpose::no, branch, Accumulate::no);
  drop(context, branch, *dx, true);
}

void LoraSlot::add_b(const Gradient& g, const Tensor& thin) {
  g.context().ops.gemm(g.dy, Transpose::yes, thin, Transpose::no, b_.gradient(), Accumulate::yes);
}

void LoraSlot::apply(Context& context, double weight_decay) {
  a_.apply(context, 1.0, weight_decay);
  b_.apply(context, b_rate_, weight_decay);
}

void LoraSlot::visit(const StateVisitor& visitor) const {
  a_.visit(visitor);
  b_.visit(visitor);
}

void LoraSlot::drop(Context& context, const Tensor& from, const Tensor& to, bool accumulate) const {
  with_activation(from.dtype(), [&]<class Activation>(Activation) {
    context.ops.launch(
        LoraDropout<Activation>{from.data<Activation>(), to.data<Activation>(), context.scalars,
                                context.rows, from.cols(), tensor_, dropout_, accumulate},
        from.rows());
  });
}

Tensor LoraSlot::dropped(Context& context, const Tensor& x) const {
  if (!drops(context)) return x;
  const Tensor out = context.scratch.tensor(x.dtype(), {x.rows(), x.cols()});
  drop(context, x, out, false);
  return out;
}

Tensor LoraSlot::scaled_product(Context& context, const Tensor& x, const Tensor& factor,
                                Transpose transpose) const {
  const Tensor out = context.scratch.tensor(x.dtype(), {x.rows(), rank()});
  context.ops.gemm_scaled(scale_, x, Transpose::no, factor, transpose, out, context.scratch);
  return out;
}

}  // namespace jackscrew
