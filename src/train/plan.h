// Plans: what a training run will take of device and disk, and what would make it take less.
// Nothing is estimated: the run itself is rehearsed on the plan device, for every figure.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/json_object.h"
#include "train/session.h"

namespace jackscrew {

// What a session for training by this recipe must hold.
SessionUse training_use(const Recipe& recipe);

// What a run leaves on disk, at most, in bytes.
struct DiskPlan {
  int64_t checkpoint = 0;   // one of them: everything needed to go on
  int64_t checkpoints = 0;  // how many there are at once
  int64_t result = 0;       // the model or adapter at the end
  int64_t masters = 0;      // while it runs, with master=mmap

  int64_t peak() const { return checkpoint * checkpoints + result + masters; }
};
DiskPlan plan_disk(const Recipe& recipe, const ModelConfig& config, const SessionPlan& plan);

// A change of settings that takes less memory.
struct Knob {
  std::string settings;  // "gradient_checkpointing=true", as they would be given
  std::string remark;    // what it costs
  int64_t peak = 0;      // of the device, with it
  int64_t saving = 0;    // against the plan; always positive
};

// Every single change that saves something, the largest saving first. Each is rehearsed.
std::vector<Knob> memory_knobs(const Recipe& recipe, const ModelFiles& files,
                               const SessionPlan& plan);

// The change that costs the run least and brings it to `budget` bytes: one, or several together.
// nullopt when none of them do.
std::optional<Knob> fitting_knob(const Recipe& recipe, const ModelFiles& files,
                                 const SessionPlan& plan, int64_t budget);

// What the plan takes of the host beside the device, in bytes.
int64_t host_peak(const SessionPlan& plan);

// Whether the plan keeps to the recipe's device_memory and host_memory, where they are set.
bool fits(const Recipe& recipe, const SessionPlan& plan);

// Brings a sequence_len that nobody set down to the positions of the model.
// Throws Error(usage) when the recipe asks for longer sequences than the model has positions for,
// or for micro-batches of more tokens than can be counted.
void settle_lengths(Recipe& recipe, const ModelConfig& config);

// Throws Error(does_not_fit), with the change that would make it fit as the hint, unless it does.
// Without a device_memory the machine's free memory is the limit.
void require_fit(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan);

// {purpose: bytes, ..., "peak"}: what stood in the ledger at its highest.
JsonObject ledger_json(const Ledger& ledger);

// The object that `plan --json` prints.
JsonObject plan_json(const Recipe& recipe, const ModelConfig& config, const SessionPlan& plan);

}  // namespace jackscrew
