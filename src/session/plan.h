// Plans: what a training run will take of device, host and disk.
// Nothing is estimated: the run itself is rehearsed on the plan device, for every figure.
#pragma once

#include <optional>
#include <string>

#include "base/checked.h"
#include "base/json_object.h"
#include "session/session.h"

namespace jackscrew {

// What a session for training by this recipe must hold.
SessionUse training_use(const Recipe& recipe);

// The bytes of the files that a run leaves; train/disk_plan.h finds them out.
struct DiskPlan {
  int64_t checkpoint = 0;   // the largest: everything needed to go on
  int64_t checkpoints = 0;  // how many there are at once, at most
  int64_t result = 0;       // the model or adapter at the end
  int64_t exports = 0;      // what `export` asks for beside it
  int64_t masters = 0;      // while it runs, with master=mmap

  int64_t all_checkpoints() const { return checked_mul(checkpoint, checkpoints); }
  // At most: checkpoints share the masters that did not change between them.
  int64_t peak() const {
    return checked_add(checked_add(checked_add(all_checkpoints(), result), exports), masters);
  }
};

// What the plan takes of the host beside the device, in bytes.
int64_t host_peak(const SessionPlan& plan);

// Bytes that a run may take at most; nullopt: any number.
struct MemoryBudget {
  std::optional<int64_t> device, host, together;

  bool holds(int64_t device_bytes, int64_t host_bytes) const;
};

// Whether the plan keeps to the recipe's device_memory and host_memory, where they are set.
bool fits(const Recipe& recipe, const SessionPlan& plan);

// The virtual tokens that the recipe's learner begins every sequence with.
int64_t virtual_tokens(const Recipe& recipe);

// Brings a sequence_len that nobody set down to the positions of the model.
// Throws Error(usage) when the recipe asks for longer sequences than the model has positions for,
// or for micro-batches of more tokens than can be counted.
void settle_lengths(Recipe& recipe, const ModelConfig& config);

// What stood in the ledger at its highest, as "weights 513.1 MiB, gradients ...": all that is a
// hundredth of it or more.
std::string purposes_text(const Ledger& ledger);
// {purpose: bytes, ...}, those of 0 bytes left out.
JsonObject purposes_json(const std::array<int64_t, kPurposes>& booked);
// {purpose: bytes, ..., "peak"}: what stood in the ledger at its highest.
JsonObject ledger_json(const Ledger& ledger);

// The object that `plan --json` prints.
JsonObject plan_json(const Recipe& recipe, const SessionPlan& plan, const DiskPlan& disk);

}  // namespace jackscrew
