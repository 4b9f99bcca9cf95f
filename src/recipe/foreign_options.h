// What people know from other trainers, and what it is here: options and methods.
#pragma once

#include <span>
#include <string_view>

#include "base/options.h"

namespace jackscrew {

// Options of axolotl, LLaMA-Factory, transformers and PEFT that have another name here, or none.
std::span<const ForeignName> foreign_options();

// Methods that are not there, with what to do instead: nullptr where nothing is known of the name.
const char* foreign_method(std::string_view name);

}  // namespace jackscrew
