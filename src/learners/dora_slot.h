// DoRA (Liu et al. 2024): each row of W + scale B A is rescaled to a learned length.
#pragma once

#include "learners/lora_slot.h"

namespace jackscrew {

// y = (x Wᵀ + scale * dropout(x) Aᵀ Bᵀ) ∘ m / n, where m [out] is learned and n [out] are the norms
// of the rows of W + scale B A. As in PEFT, n is a constant to the gradient, and m starts as n.
// (PEFT applies dropout to the x of x Wᵀ as well, in the term that it multiplies by m / n - 1; that
// would cost one more product.)
class DoraSlot : public LoraSlot {
 public:
  // Adds to `zero_rows` how many of the weight's rows are 0: they stay so, having no length.
  DoraSlot(const LearnerContext& context, const Weight& weight, const LoraSettings& settings,
           const LoraShape& shape, double& zero_rows);

  // The gradient of m computes the product again.
  double gradient_products() const override { return 1.0; }
  bool transforms_output() const override { return true; }
  void forward(Context& context, const Operand& operand, const Tensor& y,
               Accumulate accumulate) override;
  Tensor product_gradient(Context& context, const Tensor& dy) const override;
  void apply(Context& context, double weight_decay) override;
  void visit(const StateVisitor& visitor) const override;
  void restored(Context& context) override;

 protected:
  void add_b(const Gradient& g, const Tensor& thin) override;

 private:
  void begin(Context& context) const;
  void measure(Context& context) const;

  const Weight& weight_;
  Factor magnitude_;     // m [out]
  OwnedTensor squares_;  // f32 [out], the squared norms of W's rows
  OwnedTensor factors_;  // f32 [out], m / n
};

}  // namespace jackscrew
