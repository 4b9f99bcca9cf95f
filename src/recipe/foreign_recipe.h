// Recipes of other trainers: which of their keys are understood here.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/options.h"
#include "recipe/recipe_file.h"

namespace jackscrew {

struct RecipeReport {
  struct Known {
    std::string key;
    std::string option;  // its name here
  };
  struct Unknown {
    std::string key, origin;
    std::string hint;  // what to write instead, or what is wrong with the value; may be empty
  };
  std::vector<Known> known;
  std::vector<Unknown> unknown;
  std::string program;  // whose recipe it seems to be: "axolotl", "LLaMA-Factory", or empty

  // Whether it is clearly another program's, so that reporting just its first mistake would not
  // help: more than one key is not understood, or one has another meaning there.
  bool is_foreign = false;
  // The report in one line, for an error.
  std::string summary(const std::string& file) const;
  // Whose recipe it seems to be, for its hint; empty where that is not known.
  std::string program_hint() const;
};

// Compares a recipe's keys with the options; does not set any.
RecipeReport report_recipe(std::span<const RecipeEntry> entries, const OptionSet& options);

}  // namespace jackscrew
