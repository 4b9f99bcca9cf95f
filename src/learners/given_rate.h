// Learning rates of some weights alone: galore_learning_rate, static_learning_rate, ...
#pragma once

#include <optional>

#include "base/options.h"

namespace jackscrew {

// The value of the option `name`, before the schedule; nullopt where it is auto. Throws
// Error(usage) where it is more than 0 beside learning_rate=0, whose schedule scales it.
std::optional<double> given_rate(const OptionSet& options, const char* name);

}  // namespace jackscrew
