// An adapter that starts as the principal part of its weight (PiSSA), with that part subtracted:
// y += scale * (dropout(x) Aᵀ Bᵀ - x A₀ᵀ B₀ᵀ). Saved as one adapter of twice the rank for the
// unchanged weight.
#pragma once

#include "learners/lora_slot.h"

namespace jackscrew {

class PissaSlot : public LoraSlot {
 public:
  PissaSlot(const LearnerContext& context, const Weight& weight, const LoraSettings& settings,
            const LoraShape& shape, RoundingSquares& squares);

  void forward(Context& context, const Operand& operand, const Tensor& y,
               Accumulate accumulate) override;
  void backward(const Gradient& g, const Tensor* dx) override;
  void visit(const StateVisitor& visitor) const override;

 private:
  OwnedTensor initial_a_;  // A₀, f32 [rank, in]
  OwnedTensor initial_b_;  // -B₀, f32 [out, rank]
};

}  // namespace jackscrew
