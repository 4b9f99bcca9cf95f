// AdamW with f32 states.
#pragma once

#include <memory>

#include "optim/optimizer.h"

namespace jackscrew {

std::unique_ptr<Optimizer> make_adamw(const OptimizerOptions& options);

}  // namespace jackscrew
