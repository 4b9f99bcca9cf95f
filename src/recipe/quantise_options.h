// The options of quantize.
#pragma once

#include <span>
#include <string_view>

#include "base/options.h"

namespace jackscrew {

std::span<const OptionSpec> quantise_options();

// The most that the option bits can be.
inline constexpr double kMostBits = 8.0;

// Whether somebody asks for what an option says: sets it on the command line, or anywhere to
// another value than its default. A recipe of all options, as runs leave them, asks for no default.
bool asks_for(const OptionSet& options, std::string_view name);

}  // namespace jackscrew
