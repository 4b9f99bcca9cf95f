// What users know from other trainers and what it is called here: options and methods.
#pragma once

#include <span>
#include <string_view>

#include "base/options.h"

namespace jackscrew {

// Options of axolotl, LLaMA-Factory, transformers and PEFT that have another name here, or none.
std::span<const ForeignName> foreign_options();

// Says what to do instead of a method that this program lacks; nullptr for unknown names.
const char* foreign_method(std::string_view name);

}  // namespace jackscrew
