// Training checkpoints: directories `checkpoint-<step>/` that hold everything a run needs to go on
// with the same bits.
//
//   state.safetensors   every state that learners save: parameters, moments (F32), counters (U8);
//                       frozen weights are not among them
//   checkpoint.json     format, step, program version, ISA level, product, data, size and CRC-32C
//                       of state.safetensors and of each file in masters/, at last its own CRC-32C:
//                       of its text without that member; spaces fill it up to the size that it
//                       has with the longest numbers
//   masters/            second names of the files of StateRef::file: their bytes are not copied
//   recipe.yaml         the resolved recipe
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/file.h"
#include "kernels/ops.h"
#include "optim/state.h"

namespace jackscrew {

struct CheckpointInfo {
  int64_t step = 0;  // optimizer steps done
  std::string version;
  std::string isa;
  std::string product;
  std::string data = {};  // what the run learns from, in few words; empty: not known
  // Bytes that `data` may have at most: checkpoint.json has room for as many. Not read back.
  int64_t data_width = 0;
};

// Visits all states of a run, always in the same order.
using StateSource = std::function<void(const StateVisitor&)>;

// Writes `output_dir`/checkpoint-<step>, complete or not at all, and returns its path. States with
// `save` unset are left out. Throws Error(generic) when the disk refuses; nothing is left behind
// then.
fs::path write_checkpoint(const fs::path& output_dir, const CheckpointInfo& info,
                          const std::string& recipe_yaml, const StateSource& states, Ops& ops);

// The bytes of all files of the checkpoint that write_checkpoint() makes of these, whatever the
// step, the checksums and the data are. `states` may be those of the plan device. The files of
// masters/ count in full, as if nobody shared them: of checkpoints of one run, and of the run,
// those of the same name hold the same bytes as long as the master did not change in between.
int64_t checkpoint_bytes(const CheckpointInfo& info, const std::string& recipe_yaml,
                         const StateSource& states);

// All that is named checkpoint-<step> in a directory, oldest first, whether it can be used or not.
std::vector<fs::path> list_checkpoints(const fs::path& output_dir);

// Whether a directory has what makes it a checkpoint; it may be damaged.
bool is_checkpoint(const fs::path& path);

// Throws Error(model) where checkpoint.json is missing, is corrupt or cannot be true, or
// state.safetensors has another size.
CheckpointInfo read_checkpoint_info(const fs::path& checkpoint);

// Fills the states from a checkpoint: those of the role `schedule` first, then calls scheduled(),
// after which the others must be those that were saved. Throws Error(model), before anything but
// the schedule is changed, when a file is damaged or its tensors are not exactly those of this run.
void restore_checkpoint(const fs::path& checkpoint, const StateSource& states,
                        const std::function<void()>& scheduled, Ops& ops);

// Removes the checkpoints of steps after `step`: they are from a run that was given up.
void remove_checkpoints_after(const fs::path& output_dir, int64_t step);

// Removes what a process left that was killed while it wrote a checkpoint.
void remove_unfinished_checkpoints(const fs::path& output_dir);

// Where the checkpoint of a step is.
fs::path checkpoint_path(const fs::path& output_dir, int64_t step);

// Removes the oldest checkpoints until at most `keep` are left; 0 keeps all. `spared` stays, and
// does not count.
void prune_checkpoints(const fs::path& output_dir, int64_t keep, const fs::path& spared = {});

}  // namespace jackscrew
