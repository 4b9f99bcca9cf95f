// The options of a run that describe its records.
#pragma once

#include <span>

#include "base/options.h"
#include "data/record_fields.h"

namespace jackscrew {

std::span<const OptionSpec> record_options();

// The field names that these options set.
RecordFields record_fields(const OptionSet& options);

}  // namespace jackscrew
