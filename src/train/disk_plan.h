// Plans the disk: the sizes of a run's files, exact to the byte, computed from its states and
// weights on the plan device.
#pragma once

#include <string>

#include "formats/checkpoint.h"
#include "session/plan.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// What a run's checkpoints record about it, as of step 0; `data` as in CheckpointInfo. Reads a
// little of every weight that does not learn: a run calls it while the files are what was loaded.
CheckpointInfo describe_run(const Recipe& recipe, const ModelFiles& files,
                            const Tokenizer& tokenizer, Session& session, const std::string& data);

// Steps that are searched for the largest checkpoint: 200 rotations of the default length.
inline constexpr int64_t kPlannedSteps = 10000;

// The files that a run of this recipe leaves with that tokenizer. `total_steps` is 0 where it
// depends on the data, which are not known: kPlannedSteps are assumed.
//
// The checkpoint is the largest of those that the recipe saves (by save_steps, at the end and, with
// load_best_model_at_end, at evaluations) within the first kPlannedSteps. Choices that depend on
// gradients (rotation_order=importance) are planned as if all gradients were alike: the checkpoint
// is then no bound, but as large as that of one course that the run may take.
//
// Takes memory for every tensor, as a loaded model does: a run plans its disk before it loads one.
DiskPlan plan_disk(const Recipe& recipe, const ModelFiles& files, const Tokenizer& tokenizer,
                   int64_t total_steps);

// How much of the plan a run may yet write to its directory, beside the checkpoints that are there
// and with `masters` bytes of masters to come.
int64_t bytes_to_write(DiskPlan disk, int64_t masters, const fs::path& output_dir);

// How much memory the files take that a run may yet write to its output_dir while it trains, before
// it has any masters there; 0 where the directory is on a disk.
int64_t bytes_in_memory(DiskPlan disk, const fs::path& output_dir);

}  // namespace jackscrew
