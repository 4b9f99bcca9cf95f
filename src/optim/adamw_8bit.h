// AdamW with 8-bit states (Dettmers et al., "8-bit Optimizers via Block-wise Quantization",
// arXiv 2110.02861): about 2.03 bytes per element instead of 8.
#pragma once

#include <memory>

#include "optim/optimizer.h"

namespace jackscrew {

std::unique_ptr<Optimizer> make_adamw_8bit(const OptimizerOptions& options);

}  // namespace jackscrew
