// A rank of a run that obeys rank 0's commands (train/crew.h).
#pragma once

#include <span>
#include <string>
#include <vector>

#include "base/file.h"
#include "parallel/transport.h"
#include "recipe/recipe.h"

namespace jackscrew {

// What a rank has of its own beside rank 0's recipe.
struct RankStart {
  // The recipe that it was started with, as YAML: it is not used, and rank 0 warns where its own is
  // another; empty: it has none.
  std::string given = {};
  // Its Recipe::python_environments, which are no part of a recipe's text: those of its machine.
  std::vector<fs::path> environments = {};
};

// Serves until the run ends. Throws the errors of its own work as RanksLost (train/trainer.h).
void serve(Transport& transport, const RankStart& start = {});

// The recipe of rank 0, `yaml`, as `rank` follows it, see recipe_on() (train/opening.h).
Recipe followed_recipe(const std::string& yaml, int rank, std::span<const std::string> hosts,
                       const std::vector<fs::path>& environments);

}  // namespace jackscrew
