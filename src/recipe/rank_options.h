// How several ranks share a run (parallel/layout.h).
#pragma once

#include <span>

#include "base/options.h"

namespace jackscrew {

std::span<const OptionSpec> rank_options();

}  // namespace jackscrew
