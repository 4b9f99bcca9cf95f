// The files of recipes/, a part of the program: YAML with comments, named by the method.
#pragma once

#include <span>

#include "base/embedded_text.h"

namespace jackscrew {

std::span<const EmbeddedText> recipe_texts();

}  // namespace jackscrew
