// Recipes: YAML.
#include "tests/fuzz/fuzz.h"
#include "train/recipe_file.h"

void jackscrew::parse_input(std::string_view bytes) {
  accepts([&] { parse_recipe_text(std::string(bytes), "run.yaml"); });
}
