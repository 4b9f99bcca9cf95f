// Parameter: a weight of the model with its learner's slot; and the layers that use parameters.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "learners/learner.h"

namespace jackscrew {

// One weight with its slot. A tied embedding and head share one.
struct Parameter {
  std::unique_ptr<Weight> weight;
  std::unique_ptr<LearnerSlot> slot;

  bool learns() const { return slot->learns(); }
};

// An input that one or more weights read. It is prepared once for each product, when the first
// weight of that product asks.
class LinearInput {
 public:
  // x [tokens, in], f32 or of Arithmetic::activation_dtype()
  explicit LinearInput(const Tensor& x) : x_(x) {}

  // The operand lies in context.scratch, whose frame the caller holds while the input is in use.
  Operand operand(Context& context, const Product& product);

 private:
  Tensor x_;
  std::vector<std::pair<const Product*, Operand>> operands_;
};

// y = x Wᵀ plus whatever the learner adds, plus the bias if there is one.
class Linear {
 public:
  // `product_parameters` are those that the product keeps beside the weight. All belong to the
  // stage.
  Linear(Parameter& parameter, Parameter* bias, const Product& product,
         std::vector<Parameter*> product_parameters = {});

  const Weight& weight() const { return *parameter_->weight; }
  bool learns() const {
    return parameter_->learns() || bias_learns() || product_parameters_learn();
  }

  // Whether the learner has the gradient of the whole weight: not that of an adapter.
  bool forms_gradient() const { return parameter_->slot->gradient_products() >= 1.0; }

  // See Product::ready(). The calls below take what it gave while the weight stays as it is.
  Tensor ready(Context& context, int64_t bytes) const {
    return product_->ready(context, *parameter_->weight, bytes);
  }
  void forward(Context& context, LinearInput& x, const Tensor& y, const Tensor& ready = {}) const;
  // y = addend + x Wᵀ and the rest of forward(); y and addend are f32 and share no memory.
  void forward_onto(Context& context, LinearInput& x, const Tensor& addend, const Tensor& y) const;
  // Gives the learner its gradients and, unless dx is null, writes or adds the input's gradient.
  void backward(Context& context, LinearInput& x, const Tensor& dy, const Tensor* dx,
                Accumulate accumulate, const Tensor& ready = {}) const;
  // Tells all slots that their gradients are complete; backward() does so where
  // Context::completes_gradients is set.
  void complete(Context& context) const;

 private:
  bool bias_learns() const { return bias_ != nullptr && bias_->learns(); }
  bool product_parameters_learn() const;
  LinearUse use(const Tensor& ready) const {
    LinearUse out(*parameter_->weight, product_parameter_weights_);
    out.ready = ready;
    return out;
  }
  void forward(Context& context, const Operand& x, const LinearUse& use, const Tensor& y) const;
  void add_bias(Context& context, const Tensor& y, const Tensor& to) const;
  void form_gradients(Context& context, LinearInput& x, const LinearUse& use, const Tensor& dy,
                      const Tensor* dx, Accumulate accumulate) const;

  Parameter* parameter_;
  Parameter* bias_;
  const Product* product_;
  std::vector<Parameter*> product_parameters_;
  std::vector<const Weight*> product_parameter_weights_;
};

// RMSNorm with a learned scale.
class Norm {
 public:
  Norm(Parameter& parameter, double epsilon)
      : parameter_(&parameter), epsilon_(static_cast<float>(epsilon)) {}

  bool learns() const { return parameter_->learns(); }
  // Computes y [tokens, hidden] and rstd, f32 [tokens], from x [tokens, hidden]. x and y are f32 or
  // bf16; if x is bf16, so is y.
  void forward(Context& context, const Tensor& x, const Tensor& y, const Tensor& rstd) const;
  // Computes y again from the kept rstd.
  void recompute(Context& context, const Tensor& x, const Tensor& rstd, const Tensor& y) const;
  // Gives the learner its gradient and, unless dx is null, adds the input's to it; dy and dx are
  // f32.
  void backward(Context& context, const Tensor& x, const Tensor& rstd, const Tensor& dy,
                const Tensor* dx) const;
  void complete(Context& context) const { parameter_->slot->complete(context); }

 private:
  Parameter* parameter_;
  float epsilon_;
};

}  // namespace jackscrew
