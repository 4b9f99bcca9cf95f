// The files of recipes/, embedded in the program by the build (cmake/Recipes.cmake).
#pragma once

#include <span>

namespace jackscrew {

struct RecipeText {
  const char* name;  // the method's
  const char* text;  // YAML with comments
};

std::span<const RecipeText> recipe_texts();

}  // namespace jackscrew
