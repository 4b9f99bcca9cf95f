// Recipes: YAML.
#include "recipe/recipe_file.h"
#include "tests/fuzz/fuzz.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] { parse_recipe_text(std::string(bytes), "run.yaml"); });
}
