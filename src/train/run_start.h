// How a run begins in its output_dir: anew, from a checkpoint, or not at all because it has ended.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "recipe/recipe.h"

namespace jackscrew {

// With data_parallel=auto a step has the lanes that it had or, in a new run, one for each copy of
// the model; a recipe that is saved says how many. Throws Error(usage) where an update within
// backward would have several to add up.
Recipe with_lanes(Recipe recipe, int ranks);

// The steps of the run: max_steps, or as many as num_train_epochs takes. Throws Error(usage) where
// those are more than a run can have.
int64_t total_steps(const Recipe& recipe, int64_t steps_per_epoch);

// A run whose result is complete: this recipe's, so that nothing is left to do.
struct FinishedRun {
  int64_t step = 0;   // its last
  std::string go_on;  // how its training can be continued
};

struct RunStart {
  fs::path checkpoint;  // to go on from; empty: step 0
  std::optional<FinishedRun> finished;
};

// Finds out how the run begins and changes nothing. `data`: what it learns from
// (Dataset::fingerprint). A result is replaced in two cases only: overwrite=true, or the run that
// made it goes on to a later step from the checkpoint of its end. Throws Error(usage) or
// Error(data) where another result would be replaced, Error(model) where the checkpoint cannot be
// used, and Error(usage) where it is beyond the run's last step.
RunStart find_start(const Recipe& recipe, int64_t total_steps, const std::string& data);

}  // namespace jackscrew
