// The result that output_dir has already: whether it is this run's, and what may replace it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"
#include "recipe/recipe.h"
#include "train/run_data.h"

namespace jackscrew {

// A result of this very recipe: nothing is left to do if it is complete.
struct FinishedRun {
  int64_t step = 0;           // its last
  std::string continue_hint;  // a hint: how its training can be continued
  std::string missing = {};   // what of its files is gone; empty: it is complete
  int64_t result_step = 0;    // of which its result is: the last, or that of the best evaluation
};

// What the log says of the run in output_dir.
struct LoggedRun {
  RunInputs inputs;                    // empty where the log does not say
  int64_t total_steps = 0;             // of its last start
  int64_t last_step = 0;               // of which it has a line
  size_t samples = 0;                  // that were answered before the first step
  std::optional<int64_t> ended_after;  // so many steps, if it reached its end
  std::optional<int64_t> result_step;  // of which its result is, where that is not its last
};
LoggedRun logged_run(const fs::path& output_dir);

// Whether output_dir has the log of a run that ended, or exports: what is left of a result whose
// weights are gone.
bool has_left_of_result(const fs::path& output);

// Throws Error(usage) as check_result() does where the recipe alone tells that it would: before the
// data are read, whose tokens may replace those that another run keeps in output_dir.
void refuse_other_result(const Recipe& recipe, const fs::path& checkpoint);

// Returns a value if this recipe's run has ended. nullopt where output_dir has no result and
// nothing is left of one whose weights are gone, or where the run may replace it: with
// overwrite=true, or as the run that made it, which continues to a later step from the checkpoint
// of its end. Either may have been interrupted before, and then resumes from its own checkpoint.
// `checkpoint` is what the run would continue from, empty: step 0. Throws Error(usage) where it
// would replace another result, or where early stopping would end the longer run at once,
// Error(data) or Error(model) where the run differs in these alone.
std::optional<FinishedRun> check_result(const Recipe& recipe, const fs::path& checkpoint,
                                        int64_t total_steps, const RunInputs& inputs);

// Whether a checkpoint is one of those in output_dir.
bool lies_in(const fs::path& checkpoint, const fs::path& output);

// Whether the recipe says which checkpoint to continue from. Such a run does so with
// overwrite=true, too.
bool names_checkpoint(const Recipe& recipe);

// Whether an option says how long a run is, and nothing else of it.
bool is_length(const std::string& option);

}  // namespace jackscrew
