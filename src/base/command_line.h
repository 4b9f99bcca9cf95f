// Splits the arguments of a command into operands (file names, words) and assignments to options.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace jackscrew {

struct CommandLine {
  std::vector<std::string> operands;
  std::vector<Assignment> assignments;  // in the order written; a later one wins
};

// `name=value`, `--name=value` and `--name value` are the same; a boolean may stand alone
// (`--name`).
// `--` ends the options: what follows is operands. `known` tells which names are booleans. Throws
// Error(usage) for an unknown `--name`, a missing value, a single-dash option and two names of one
// option.
CommandLine parse_command_line(std::span<const std::string> arguments, const OptionSet& known);

}  // namespace jackscrew
