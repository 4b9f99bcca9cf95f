// AdamW with f32 states.
#pragma once

#include <memory>

#include "optim/adamw_rule.h"
#include "optim/optimizer.h"

namespace jackscrew {

// The rule with the constants of `options`.
AdamwRule adamw_rule(const OptimizerOptions& options);

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options);

}  // namespace jackscrew
