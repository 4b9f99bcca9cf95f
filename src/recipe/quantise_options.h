// The options of quantize.
#pragma once

#include <span>

#include "base/options.h"

namespace jackscrew {

std::span<const OptionSpec> quantise_options();

// The most that the option bits can be.
inline constexpr double kMostBits = 8.0;

}  // namespace jackscrew
