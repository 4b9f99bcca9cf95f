// The texts of --help and --version.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/commands.h"

namespace jackscrew {

std::string program_help(std::span<const Subcommand> commands);

// The help of one command: examples first, then its option tables with their defaults.
std::string command_help(const Subcommand& command);

// The commands whose help shows an option, by any of its names; empty: there is no such option.
std::vector<std::string> commands_with(std::string_view option);

std::string version_text();

}  // namespace jackscrew
