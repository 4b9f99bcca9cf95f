// Plans: what a training run will take of device, host and disk. Nothing is estimated: every figure
// comes from a rehearsal of the run itself on the plan device.
#pragma once

#include <optional>
#include <string>

#include "base/checked.h"
#include "base/json_object.h"
#include "session/session.h"

namespace jackscrew {

// The use of a session that trains by this recipe.
SessionUse training_use(const Recipe& recipe);

// The bytes of the files that a run writes; computed by train/disk_plan.h.
struct DiskPlan {
  int64_t checkpoint = 0;   // the largest: everything needed to resume
  int64_t checkpoints = 0;  // the most that exist at once
  int64_t result = 0;       // the model or adapter at the end
  int64_t exports = 0;      // models that `export` asks for beside it
  int64_t masters = 0;      // during the run, with master=mmap

  // Of them all, the checkpoint of an interrupted run included; of the log about what it takes.
  int64_t largest_file = 0;

  int64_t all_checkpoints() const { return checked_mul(checkpoint, checkpoints); }
  // An upper bound: checkpoints share the masters that did not change between them.
  int64_t peak() const {
    return checked_add(checked_add(checked_add(all_checkpoints(), result), exports), masters);
  }
};

// The most bytes that a run may take; nullopt: no limit.
struct MemoryBudget {
  std::optional<int64_t> device, host, together;

  // `beside`: what is in no ledger, of which `device` and `host` say nothing.
  bool holds(int64_t device_bytes, int64_t host_bytes, int64_t beside = 0) const;
};

// Whether the plan stays within the recipe's device_memory and host_memory, where they are set.
bool fits(const Recipe& recipe, const SessionPlan& plan);

// How many virtual tokens the recipe's learner puts before every sequence.
int64_t virtual_tokens(const Recipe& recipe);

// Whether the result of a run is an adapter rather than a model.
bool makes_adapter(const Recipe& recipe);

// The model that the recipe's learner reads exact values from (Learner::original_model()); empty:
// none.
std::string original_model(const Recipe& recipe);

// Reduces a default sequence_len to the positions of the model; of several models, to the least.
// Throws Error(usage) when the recipe asks for longer sequences than the model has positions for,
// when the virtual tokens leave no room for a text, or when a micro-batch has more tokens than are
// supported.
void settle_lengths(Recipe& recipe, const ModelFiles& files);

// The ledger's purposes at its peak, as "weights 513.1 MiB, gradients ...": all that are a
// hundredth of it or more.
std::string purposes_text(const Ledger& ledger);
// {purpose: bytes, ...}, those of 0 bytes left out.
JsonObject purposes_json(const std::array<int64_t, kPurposes>& booked);
// {purpose: bytes, ..., "peak": bytes}, at the ledger's peak.
JsonObject ledger_json(const Ledger& ledger);

// The object that `plan --json` prints.
JsonObject plan_json(const Recipe& recipe, const SessionPlan& plan, const DiskPlan& disk);

}  // namespace jackscrew
