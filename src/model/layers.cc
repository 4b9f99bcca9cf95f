#include "model/layers.h"

#include <algorithm>

#include "kernels/add_scaled.h"
#include "kernels/sum_over_tokens.h"
#include "quant/plain.h"

namespace jackscrew {

namespace {

class NormContributor : public Contributor {
 public:
  void add_dw(const Gradient& g, const Tensor& d) const override {
    with_activation(g.x.dtype(), [&]<class Input>(Input) {
      add_over_tokens(
          g.context(),
          RmsNormWeightGradient<Input>{g.x.data<Input>(), g.rstd.data<float>(), g.dy.data<float>(),
                                       nullptr, g.x.rows(), g.x.cols(), 0},
          d);
    });
  }
};

const NormContributor kNormContributor;

class BiasContributor : public Contributor {
 public:
  void add_dw(const Gradient& g, const Tensor& d) const override {
    with_activation(g.dy.dtype(), [&]<class Activation>(Activation) {
      add_over_tokens(
          g.context(),
          BiasGradient<Activation>{g.dy.data<Activation>(), nullptr, g.dy.rows(), g.dy.cols(), 0},
          d);
    });
  }
};

const BiasContributor kBiasContributor;

// The contributor of a parameter that a product keeps beside a weight; its gradient is made from
// the weight's.
class ProductParameterContributor : public Contributor {
 public:
  ProductParameterContributor(const Product& product, const Gradient& of_weight, size_t place)
      : product_(product), of_weight_(of_weight), place_(place) {}
  void add_dw(const Gradient&, const Tensor& d) const override {
    product_.add_parameter_gradient(of_weight_, place_, d);
  }
  void add_start(const Gradient&, const Tensor& d) const override {
    product_.add_parameter_start(of_weight_, place_, d);
  }

 private:
  const Product& product_;
  const Gradient& of_weight_;
  size_t place_;
};

}  // namespace

Operand LinearInput::operand(Context& context, const Product& product) {
  for (const auto& [reader, operand] : operands_) {
    if (reader == &product) return operand;
  }
  return operands_.emplace_back(&product, product.prepare(context, x_)).second;
}

Linear::Linear(Parameter& parameter, Parameter* bias, const Product& product,
               std::vector<Parameter*> product_parameters)
    : parameter_(&parameter),
      bias_(bias),
      product_(&product),
      product_parameters_(std::move(product_parameters)) {
  for (const Parameter* beside : product_parameters_)
    product_parameter_weights_.push_back(beside->weight.get());
}

bool Linear::product_parameters_learn() const {
  return std::any_of(product_parameters_.begin(), product_parameters_.end(),
                     [](const Parameter* parameter) { return parameter->learns(); });
}

void Linear::forward(Context& context, LinearInput& x, const Tensor& y, const Tensor& ready) const {
  forward(context, x.operand(context, *product_), use(ready), y);
}

void Linear::forward_onto(Context& context, LinearInput& x, const Tensor& addend,
                          const Tensor& y) const {
  const Operand operand = x.operand(context, *product_);
  LearnerSlot& slot = *parameter_->slot;
  if (slot.transforms_output()) {
    // The slot must see the product without the addend.
    const Arena::Frame frame(context.scratch);
    const Tensor apart = context.scratch.tensor(DType::f32, {y.rows(), y.cols()});
    forward(context, operand, use({}), apart);
    context.ops.copy(y, addend);
    add_scaled(context.ops, y, apart);
    return;
  }
  product_->forward_onto(context, operand, use({}), addend, y);
  slot.forward(context, operand, y, Accumulate::yes);
  if (bias_ != nullptr) add_bias(context, y, y);
}

void Linear::forward(Context& context, const Operand& x, const LinearUse& use,
                     const Tensor& y) const {
  LearnerSlot& slot = *parameter_->slot;
  if (y.dtype() == DType::f32 || (bias_ == nullptr && !slot.adds_to_output())) {
    product_->forward(context, x, use, y, Accumulate::no);
    slot.forward(context, x, y, Accumulate::yes);
    if (bias_ != nullptr) add_bias(context, y, y);
    return;
  }
  // The sum is rounded once: the terms of a young adapter are smaller than the rounding error of y,
  // and those of a bias that learns change by less.
  if (bias_ == nullptr && !slot.transforms_output()) {
    // The branch, rounded by itself, loses a 512th of itself, and the product's sum begins with it.
    slot.forward(context, x, y, Accumulate::no);
    product_->forward(context, x, use, y, Accumulate::yes);
    return;
  }
  const Arena::Frame frame(context.scratch);
  const Tensor sum = context.scratch.tensor(DType::f32, {y.rows(), y.cols()});
  product_->forward(context, x, use, sum, Accumulate::no);
  slot.forward(context, x, sum, Accumulate::yes);
  if (bias_ != nullptr) {
    add_bias(context, sum, y);
  } else {
    convert_to_bf16(context.ops, sum, y);
  }
}

// to = y plus the bias; to is y, or bf16.
void Linear::add_bias(Context& context, const Tensor& y, const Tensor& to) const {
  with_activation(to.dtype(), [&]<class Activation>(Activation) {
    context.ops.launch(AddBias<Activation>{bias_->weight->as_f32().data<float>(), y.data<float>(),
                                           to.data<Activation>(), y.cols()},
                       y.rows());
  });
}

void Linear::backward(Context& context, LinearInput& x, const Tensor& dy, const Tensor* dx,
                      Accumulate accumulate, const Tensor& ready) const {
  form_gradients(context, x, use(ready), dy, dx, accumulate);
  if (context.completes_gradients) complete(context);
}

void Linear::complete(Context& context) const {
  parameter_->slot->complete(context);
  if (bias_ != nullptr) bias_->slot->complete(context);
  for (const Parameter* parameter : product_parameters_) parameter->slot->complete(context);
}

void Linear::form_gradients(Context& context, LinearInput& x, const LinearUse& use,
                            const Tensor& dy, const Tensor* dx, Accumulate accumulate) const {
  if (bias_learns()) {
    Gradient g(context, kBiasContributor, *bias_->weight);
    g.dy = dy;
    bias_->slot->backward(g, nullptr);
  }
  if (dx == nullptr && !parameter_->learns() && !product_parameters_learn()) return;
  const Operand operand = x.operand(context, *product_);
  const Arena::Frame frame(context.scratch);
  const LearnerSlot& slot = *parameter_->slot;
  const Tensor of_product = slot.transforms_output() ? slot.product_gradient(context, dy) : dy;
  const Gradient g = product_->backward(context, operand, of_product, use);
  if (dx != nullptr) g.add_dx(*dx, accumulate);
  if (parameter_->learns()) parameter_->slot->backward(g, dx);
  for (size_t i = 0; i < product_parameters_.size(); ++i) {
    if (!product_parameters_[i]->learns()) continue;
    const ProductParameterContributor contributor(*product_, g, i);
    product_parameters_[i]->slot->backward(
        Gradient(context, contributor, *product_parameters_[i]->weight), nullptr);
  }
}

void Norm::forward(Context& context, const Tensor& x, const Tensor& y, const Tensor& rstd) const {
  with_activations(x, y, [&]<class Input, class Activation>(Input, Activation) {
    context.ops.launch(RmsNormForward<Input, Activation>{x.data<Input>(),
                                                         parameter_->weight->as_f32().data<float>(),
                                                         y.data<Activation>(), rstd.data<float>(),
                                                         x.cols(), epsilon_},
                       x.rows());
  });
}

void Norm::recompute(Context& context, const Tensor& x, const Tensor& rstd, const Tensor& y) const {
  with_activations(x, y, [&]<class Input, class Activation>(Input, Activation) {
    context.ops.launch(
        RmsNormApply<Input, Activation>{x.data<Input>(), parameter_->weight->as_f32().data<float>(),
                                        rstd.data<float>(), y.data<Activation>(), x.cols()},
        x.rows());
  });
}

void Norm::backward(Context& context, const Tensor& x, const Tensor& rstd, const Tensor& dy,
                    const Tensor* dx) const {
  if (learns()) {
    Gradient g(context, kNormContributor, *parameter_->weight);
    g.x = x;
    g.dy = dy;
    g.rstd = rstd;
    parameter_->slot->backward(g, nullptr);
  }
  if (dx != nullptr) {
    with_activation(x.dtype(), [&]<class Input>(Input) {
      context.ops.launch(
          RmsNormBackward<Input>{x.data<Input>(), parameter_->weight->as_f32().data<float>(),
                                 rstd.data<float>(), dy.data<float>(), dx->data<float>(), x.cols()},
          x.rows());
    });
  }
  if (context.completes_gradients) complete(context);
}

}  // namespace jackscrew
