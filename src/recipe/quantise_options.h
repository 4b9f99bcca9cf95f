// The options of quantize.
#pragma once

#include "base/options.h"

namespace jackscrew {

std::span<const OptionSpec> quantise_options();

}  // namespace jackscrew
