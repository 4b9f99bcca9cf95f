// Keeping a run to what there is: the fastest recipe that does, and the refusal of one that does
// not.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/plan.h"

namespace jackscrew {

struct Fit {
  Recipe recipe;
  std::string settings;  // what differs from the recipe asked for: "name=value name=value"
  SessionPlan plan;
};

// Tries the knobs of knobs.h, alone and together, in the order of what they cost in time; each is
// rehearsed. Where none of it fits, other methods follow, with their own knobs. The recipe's
// device_memory and host_memory are the budget. nullopt when nothing fits.
std::optional<Fit> fastest_fit(const Recipe& recipe, const ModelFiles& files);

// Throws Error(does_not_fit), with the change that would make it fit as the hint, unless it does.
// Without a device_memory the machine's free memory is the limit, of host and device together.
void require_fit(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan);

// What a run takes of the machine's own memory, in bytes, and what it may: several runs on one
// machine must share that. nullopt: the recipe sets a budget, and nothing else limits it.
struct MachineMemory {
  int64_t needed = 0;
  std::optional<int64_t> available;
};
MachineMemory machine_memory(const Recipe& recipe, const SessionPlan& plan);

}  // namespace jackscrew
