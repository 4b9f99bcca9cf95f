// Options that select linear layers of a model's blocks: lora_target, galore_target.
#pragma once

#include <span>
#include <string>

#include "base/module_patterns.h"
#include "base/options.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// "q_proj, k_proj, ...": for hints.
std::string linear_module_names();

// The list option `name`: all-linear, names or ends of paths, or a regular expression for whole
// paths. Throws Error(usage) where it names no module, or one that does not exist.
ModuleTargets linear_targets(const OptionSet& options, const char* name);

}  // namespace jackscrew
