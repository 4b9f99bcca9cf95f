// The fastest way in which a number of ranks does a recipe within a memory that each of them has.
#pragma once

#include <optional>
#include <string>

#include "session/rank_plan.h"

namespace jackscrew {

struct RanksFit {
  Recipe recipe;
  std::string settings;  // what differs from the recipe asked for: "name=value name=value"
  RanksPlan plan;
};

// As fastest_fit() (session/fit.h) does for one rank. Tries every number of stages into which the
// ranks can be divided, unless the recipe sets pipeline_stages; where the fastest split of blocks
// does not fit, the fastest of those that do, unless it sets stage_split. A step keeps its
// micro-batches, and its lanes where the stages allow them. The budget of each rank is its
// device_memory, see of_rank(), and host_memory. nullopt when nothing fits.
std::optional<RanksFit> fastest_fit(const Recipe& recipe, const ModelFiles& files, int ranks);

}  // namespace jackscrew
