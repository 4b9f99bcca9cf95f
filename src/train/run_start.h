// How a run begins in its output_dir: anew, from a checkpoint, or not at all because it has ended.
#pragma once

#include <optional>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "optim/schedule.h"
#include "recipe/recipe.h"
#include "train/earlier_result.h"
#include "train/run_data.h"

namespace jackscrew {

// Resolves data_parallel=auto: a resumed run keeps its number of lanes, a new run has one per copy
// of the model; the recipe that is saved has the number. Throws Error(usage) where updates within
// backward (update=fused) would need the sum of several lanes.
Recipe with_lanes(Recipe recipe, int ranks);

// The run's chat format. Where the template prints the date and the recipe names none, the recipe
// gets that of the run's first start, which a run that goes on finds in the recipe of the one
// before; a new run warns of it.
ChatFormat settle_chat_date(Recipe& recipe, const Tokenizer& tokenizer);

// Throws Error(usage) where the model has no weights to begin with, and Error(model) where the
// adapter cannot be trained further.
void check_model(const Recipe& recipe, const ModelFiles& files);

// The steps of the run: max_steps, or as many as num_train_epochs takes. Throws Error(usage) where
// that is more than a run can have.
int64_t total_steps(const Recipe& recipe, int64_t steps_per_epoch);

// For a hint: how a run goes on from what it has left in output_dir, "run the same command again",
// without the settings that would begin elsewhere: overwrite=true, resume=never or a checkpoint
// that later ones have replaced. `output_dir` is where it is now: where it was moved, the command
// must name it.
std::string same_command_again(const Recipe& recipe, const fs::path& output_dir);

// The error of a run that fails when its result is whole in output_dir, which it says first. Where
// ranks are lost with a device and exports are missing, the same command gives them; whatever else
// fails would fail again, and keeps its hint.
Error failed_after_the_result(const Error& error, const Recipe& recipe, const fs::path& output_dir,
                              bool ranks_lost);

// Its learning rates. Throws Error(usage) where the warm-up is as long as the run.
Schedule run_schedule(const Recipe& recipe, int64_t total_steps);

struct RunStart {
  fs::path checkpoint;                  // to continue from; empty: step 0
  std::optional<FinishedRun> finished;  // complete
  // A warning where it had ended and files of its result are gone: it writes the same ones again.
  std::string writes_again = {};
  // output_dir belongs to another run than the checkpoint; its log and checkpoints are replaced.
  bool replaces_another = false;
  // output_dir is that of the run that wrote the checkpoint, which may have been left elsewhere:
  // its evaluations count, and its best checkpoint is here.
  bool is_own = false;
};

// Throws Error(usage) as find_start() does where the recipe alone tells that it would: before the
// data are read, whose tokens may replace those that another run keeps in output_dir.
void refuse_other_recipe(const Recipe& recipe);

// Decides how the run begins, in the recipe's output_dir, or in `output` where that was moved to
// (a checkpoint that the recipe names is looked for under that name, and where the run has ended a
// warning says if it is not there); changes nothing. A result is
// replaced in two cases only: overwrite=true, or the run that made it continues to a later step
// from the checkpoint of its end. Either may have been interrupted before, and then resumes from
// its own checkpoint. Throws Error(usage) where another result would be replaced, Error(data) or
// Error(model) where that differs in these alone, or where the run would go on from a checkpoint of
// elsewhere in the log of another; Error(model) where the checkpoint cannot be used, or a
// file of the result is gone that only a new training would bring back; and Error(usage) where it
// is beyond the run's last step.
RunStart find_start(Recipe recipe, const fs::path& output, int64_t total_steps,
                    const RunInputs& inputs);

// For a hint: how a run that has stopped goes on from `checkpoint`, the newest it began from or
// wrote.
std::string how_to_go_on(const Recipe& recipe, const RunStart& start, const fs::path& checkpoint);

// The hint of a run that is stopped before it has begun: `hint`, after what another of its ranks
// may have said.
std::string hint_after_stop(int ranks, const std::string& hint);

// The hint of a run that failed after so many updates of its weights: `hint` or, where that is
// empty, the usual one; without an update, what else it can be. And how the run goes on from
// `newest`, its last checkpoint, or from one that has not the cause in it.
std::string hint_after_non_finite(const Recipe& recipe, int64_t updates, std::string hint,
                                  const fs::path& newest);

// Throws `error`, which says why the states of the checkpoint are not this run's; the hint names
// the options that have changed since, which may be why.
[[noreturn]] void refuse_states(const fs::path& checkpoint, const Recipe& recipe,
                                const Error& error);

}  // namespace jackscrew
