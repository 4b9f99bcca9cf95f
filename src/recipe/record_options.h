// The options of a run about what its records look like.
#pragma once

#include <span>

#include "base/options.h"
#include "data/record_fields.h"

namespace jackscrew {

std::span<const OptionSpec> record_options();

// The names that they give.
RecordFields record_fields(const OptionSet& options);

}  // namespace jackscrew
