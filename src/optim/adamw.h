// AdamW with f32 states, and what its kinds share.
#pragma once

#include <memory>
#include <string>

#include "optim/adamw_rule.h"
#include "optim/optimizer.h"

namespace jackscrew {

// The steps of one tensor: their count, and the rule with the constants of the options. States take
// it after their moments, and visit it after them: checkpoints have them in this order.
class AdamwSteps {
 public:
  AdamwSteps(Memory& memory, const OptimizerOptions& options);

  // Counts a step, and fills the factors.
  void begin(Context& context, double learning_rate_scale, double weight_decay);
  const AdamwFactors* factors() const {
    return static_cast<const AdamwFactors*>(factors_.view().raw());
  }
  AdamwRule rule() const;
  void visit(const std::string& name, const StateVisitor& visitor) const;

 private:
  OptimizerOptions options_;
  OwnedTensor factors_;  // AdamwFactors
};

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options);

}  // namespace jackscrew
