// The LoRA adapter of one weight: y += scale * dropout(x) Aᵀ Bᵀ.
#pragma once

#include <string>

#include "learners/factor.h"
#include "learners/lora_options.h"
#include "learners/lora_start.h"

namespace jackscrew {

class LoraSlot : public LearnerSlot {
 public:
  LoraSlot(const LearnerContext& context, const Weight& weight, const LoraSettings& settings,
           const LoraShape& shape);

  bool learns() const override { return true; }
  double gradient_products() const override { return 0.0; }
  bool adds_to_output() const override { return true; }
  void forward(Context& context, const Operand& operand, const Tensor& y,
               Accumulate accumulate) override;
  void backward(const Gradient& g, const Tensor* dx) override;
  void apply(Context& context, double weight_decay) override;
  void visit(const StateVisitor& visitor) const override;

  LoraFactors factors() const { return {a_.value(), b_.value(), static_cast<double>(scale_)}; }

 protected:
  // "model.layers.0.self_attn.q_proj.weight" -> "model.layers.0.self_attn.q_proj." + part
  static std::string part_name(const Weight& weight, const char* part);

  // Adds the gradient of B, given g.dy and thin [tokens, rank] = scale * dropout(x) Aᵀ.
  virtual void add_b(const Gradient& g, const Tensor& thin);

  int64_t rank() const { return a_.value().rows(); }
  float scale() const { return scale_; }
  double b_rate() const { return b_rate_; }
  // scale * x op(factor), [tokens, rank], all in the dtype of x, in context.scratch. Sums are f32
  // and rounded once.
  Tensor scaled_product(Context& context, const Tensor& x, const Tensor& factor,
                        Transpose transpose) const;
  const Factor& a() const { return a_; }
  const Factor& b() const { return b_; }

 private:
  bool drops(const Context& context) const { return context.training && dropout_ > 0.0f; }
  void drop(Context& context, const Tensor& from, const Tensor& to, bool accumulate) const;
  Tensor dropped(Context& context, const Tensor& x) const;

  float scale_;
  float dropout_;
  double b_rate_;  // B's learning rate as a multiple of A's
  uint32_t tensor_;
  Factor a_;  // [rank, in]
  Factor b_;  // [out, rank]
};

}  // namespace jackscrew
