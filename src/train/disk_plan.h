// The plan of the disk: the files of a run, to the byte, by what its states and its weights are on
// the plan device.
#pragma once

#include <string>

#include "formats/checkpoint.h"
#include "session/plan.h"
#include "text/tokenizer/tokenizer.h"

namespace jackscrew {

// What a checkpoint of a session says of the run; `data` as in CheckpointInfo.
CheckpointInfo checkpoint_info(const Recipe& recipe, Session& session, int64_t step,
                               const std::string& data);

// Steps within which the largest checkpoint is looked for: 200 rotations of the default length.
inline constexpr int64_t kPlannedSteps = 10000;

// The files that a run of this recipe leaves with that tokenizer. `total_steps` is 0 where only the
// data would say: then as of kPlannedSteps.
//
// The checkpoint is the largest of those that the recipe has saved (by save_steps, at the end and,
// with load_best_model_at_end, at evaluations) within the first kPlannedSteps. What gradients
// decide (rotation_order=importance) is as if all gradients were alike.
DiskPlan plan_disk(const Recipe& recipe, const ModelFiles& files, const Tokenizer& tokenizer,
                   int64_t total_steps);

}  // namespace jackscrew
