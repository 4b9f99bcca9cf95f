// A recipe as text for whoever goes on writing it.
#pragma once

#include <string>

#include "recipe/recipe.h"

namespace jackscrew {

// The resolved recipe as YAML in which values that nobody has given are comments: it reads back as
// the same recipe for every command, also where one asks whether an option was given.
std::string given_yaml(const Recipe& recipe);

}  // namespace jackscrew
