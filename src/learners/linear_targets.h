// Options that select linear layers of a model's blocks: lora_target, galore_target.
#pragma once

#include <set>
#include <string>

#include "base/module_patterns.h"
#include "base/options.h"
#include "quant/weight_spec.h"

namespace jackscrew {

// The list option `name`: all-linear, names or ends of paths, or a regular expression for whole
// paths. Throws Error(usage) where it names no module, or one that does not exist.
ModuleTargets linear_targets(const OptionSet& options, const char* name);

// Throws Error(usage) for the first of the option's paths that is none of `linears`, the paths of
// the linear layers of the model's blocks, and where nothing that it has matches any of them.
void check_targets_exist(const ModuleTargets& targets, const char* name,
                         const std::set<std::string>& linears);

}  // namespace jackscrew
