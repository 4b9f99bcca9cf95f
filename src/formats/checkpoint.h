// Training checkpoints: directories `checkpoint-<step>/` that hold everything a run needs to be
// resumed with the same bits.
//
//   state.safetensors   every state that learners save: parameters, moments (F32), counters (U8);
//                       frozen weights are not among them
//   checkpoint.json     format, step, program version, ISA level, product, data, model,
//                       what a run has watched (CheckpointInfo::watch), size and CRC-32C of
//                       state.safetensors and of each file in masters/, and
//                       last the CRC-32C of its own text without that member; padded with spaces to
//                       the size that it has with the longest numbers
//   masters/            hard links to the files of StateRef::file: their bytes are not copied
//   recipe.yaml         the resolved recipe
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/shared_names.h"
#include "kernels/ops.h"
#include "tensor/state.h"

namespace jackscrew {

struct CheckpointInfo {
  int64_t step = 0;  // optimizer steps done
  std::string version;
  std::string isa;
  std::string product;
  std::string data = {};  // a short description of the training data; empty: not known
  // The most bytes that `data` may have: checkpoint.json has room for as many. Not read back.
  int64_t data_width = 0;
  // A short description of what of the model is not among the states; empty: not known.
  std::string model = {};
  // What the run has watched, as one JSON object (RunWatch::state()); empty: it is not kept.
  std::string watch = {};
  int64_t watch_width = 0;  // the most bytes that it may have, as data_width
};

// Visits all states of a run, always in the same order.
using StateSource = std::function<void(const StateVisitor&)>;

// Writes `output_dir`/checkpoint-<step>, complete or not at all, and returns its path. States with
// `save` unset are left out. Throws Error(generic) when the disk fails, and leaves nothing behind,
// or when something of that name is there that is no checkpoint.
fs::path write_checkpoint(const fs::path& output_dir, const CheckpointInfo& info,
                          const std::string& recipe_yaml, const StateSource& states, Ops& ops);

// What the files of a checkpoint take that write_checkpoint() writes: it does not depend on the
// step, the checksums and the data. `states` may be those of the plan device. The files of masters/
// count in full, although checkpoints of a run share them with each other and with the run as long
// as a master does not change in between.
FileSizes checkpoint_sizes(const CheckpointInfo& info, const std::string& recipe_yaml,
                           const StateSource& states);

// Every checkpoint-<step> in a directory, by ascending step, whether it can be used or not. What
// has neither a checkpoint.json nor a state.safetensors is another's: nothing here touches it.
// Throws Error(generic) where the system does not say: a run that goes by a part of them starts
// over.
std::vector<fs::path> list_checkpoints(const fs::path& output_dir);

// Whether a run was stopped while it moved its result to the top of its output_dir. Throws
// Error(generic) where the system does not say.
bool has_result_to_move(const fs::path& output_dir);

// A hint where a directory is taken for a result: a checkpoint, or that of a run that has not ended
// or whose result is not yet moved; empty for any other. Throws Error(generic) where the system
// does not say.
std::string hint_without_result(const fs::path& directory);

// Whether a directory has a checkpoint.json; the checkpoint may be damaged. Throws Error(generic)
// where the system does not say.
bool is_checkpoint(const fs::path& path);

// Error(model): a newer version of the program has written the checkpoint, which is not damaged.
class NewerCheckpoint : public Error {
 public:
  using Error::Error;
};

// Throws NewerCheckpoint, or Error(model) where checkpoint.json is missing, is corrupt or cannot be
// true, or state.safetensors has another size.
CheckpointInfo read_checkpoint_info(const fs::path& checkpoint);

// Fills the states from a checkpoint: first those of the role `learner`, then calls
// learner_restored(), after which `states` must visit exactly the others that were saved. Throws
// Error(model), before anything but the learner's states is changed, when a file is damaged or its
// tensors are not exactly those of this run.
void restore_checkpoint(const fs::path& checkpoint, const StateSource& states,
                        const std::function<void()>& learner_restored, Ops& ops);

// Removes the checkpoints of steps after `step`, which are from an abandoned run, but not `spared`;
// the newest first, so that `spared` is the newest as soon as it can be.
void remove_checkpoints_after(const fs::path& output_dir, int64_t step,
                              const fs::path& spared = {});

// What is left of checkpoints that were not written to their end, or not removed to theirs.
std::vector<fs::path> unfinished_checkpoints(const fs::path& output_dir);
// Removes that.
void remove_unfinished_checkpoints(const fs::path& output_dir);

// The path of the checkpoint of a step.
fs::path checkpoint_path(const fs::path& output_dir, int64_t step);

// Removes all but the newest `keep` checkpoints; 0 keeps all. `spared` stays beside them where it
// is older. What is left of unfinished ones goes too: the system may have refused it before.
void prune_checkpoints(const fs::path& output_dir, int64_t keep, const fs::path& spared = {});

}  // namespace jackscrew
