// Parameter: a weight of the model with the slot of its learner; and the layers that use one.
#pragma once

#include <memory>

#include "learners/learner.h"

namespace jackscrew {

// One weight, whoever uses it: a tied embedding and head share one.
struct Parameter {
  std::unique_ptr<Weight> weight;
  std::unique_ptr<LearnerSlot> slot;

  bool learns() const { return slot->learns(); }
};

// y = x Wᵀ plus whatever the learner adds, plus the bias if there is one.
class Linear {
 public:
  Linear(Parameter& parameter, Parameter* bias, const Product& product)
      : parameter_(&parameter), bias_(bias), product_(&product) {}

  const Parameter& parameter() const { return *parameter_; }
  bool learns() const { return parameter_->learns() || bias_learns(); }
  int64_t out() const { return parameter_->weight->rows(); }

  void forward(Context& context, const Operand& x, const Tensor& y, Accumulate accumulate) const;
  // Gives the learner its gradient and, unless dx is null, writes or adds the input's.
  void backward(Context& context, const Operand& x, const Tensor& dy, const Tensor* dx,
                Accumulate accumulate) const;

 private:
  bool bias_learns() const { return bias_ != nullptr && bias_->learns(); }

  Parameter* parameter_;
  Parameter* bias_;
  const Product* product_;
};

// RMSNorm with a learned scale.
class Norm {
 public:
  Norm(Parameter& parameter, double epsilon)
      : parameter_(&parameter), epsilon_(static_cast<float>(epsilon)) {}

  bool learns() const { return parameter_->learns(); }
  // y, rstd from x [tokens, hidden]; x and y are f32 or bf16, y bf16 if x is
  void forward(Context& context, const Tensor& x, const Tensor& y, const Tensor& rstd) const;
  // y again from the kept rstd
  void recompute(Context& context, const Tensor& x, const Tensor& rstd, const Tensor& y) const;
  // dx += ..., unless dx is null; and the learner's share. dy, dx are f32
  void backward(Context& context, const Tensor& x, const Tensor& rstd, const Tensor& dy,
                const Tensor* dx) const;

 private:
  Parameter* parameter_;
  float epsilon_;
};

}  // namespace jackscrew
