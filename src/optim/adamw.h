// AdamW with f32 states.
#pragma once

#include <memory>

#include "optim/adamw_rule.h"
#include "optim/optimizer.h"

namespace jackscrew {

// The rule with the constants of `options`.
AdamwRule adamw_rule(const OptimizerOptions& options);

// Counts a step of one tensor: fills its factors, an AdamwFactors in device memory.
void count_adamw_step(Context& context, const Tensor& factors, const OptimizerOptions& options,
                      double learning_rate_scale, double weight_decay);

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options);

}  // namespace jackscrew
