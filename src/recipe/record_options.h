// The options of a run that describe its records.
#pragma once

#include <span>

#include "base/options.h"
#include "data/record_fields.h"

namespace jackscrew {

std::span<const OptionSpec> record_options();

struct RecordSettings {
  RecordFields fields;
  bool skip_bad_records = false;

  void read(const OptionSet& options);
};

}  // namespace jackscrew
