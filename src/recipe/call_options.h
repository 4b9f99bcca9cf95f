// The options of one call of the program, which no recipe keeps.
#pragma once

#include <span>

#include "base/options.h"

namespace jackscrew {

struct CallSettings {
  bool overwrite = false;
  bool json = false;
  bool quiet = false;
  bool fit = false;
  int ranks = 1;
  bool verbose = false;
  bool print_config = false;

  void read(const OptionSet& options);
};

std::span<const OptionSpec> call_options();

}  // namespace jackscrew
