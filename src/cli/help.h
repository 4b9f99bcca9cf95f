// The texts of --help and --version.
#pragma once

#include <span>
#include <string>

#include "cli/commands.h"

namespace jackscrew {

std::string program_help(std::span<const Subcommand> commands);

// The help of one command: examples first, then its option tables with their defaults.
std::string command_help(const Subcommand& command);

std::string version_text();

}  // namespace jackscrew
