// Keeping a run within the available memory: finding the fastest recipe that fits, and refusing one
// that does not.
#pragma once

#include <optional>
#include <string>

#include "session/plan.h"

namespace jackscrew {

struct Fit {
  Recipe recipe;
  std::string settings;  // what differs from the recipe asked for: "name=value name=value"
  SessionPlan plan;
};

// Rehearses every combination of the knobs of knobs.h, in ascending order of cost, until one fits;
// if none does, goes on with other methods and their knobs. The recipe's device_memory and
// host_memory are the budget. nullopt when nothing fits.
std::optional<Fit> fastest_fit(const Recipe& recipe, const ModelFiles& files);

// Whether the recipe's budgets say what the run may take of the machine's own memory: what is free
// is then the user's business. A device_memory alone says nothing of what waits beside the device.
bool budgets_machine(const Recipe& recipe, const SessionPlan& plan, const Device& device);

// Throws Error(does_not_fit) unless the plan fits, with a change that would make it fit as the
// hint. Without a device_memory, the device's free memory is the limit and, unless there is a
// host_memory, the machine's free memory for what lies beside it; where the device computes in the
// host's memory, the machine's free memory for both together, unless budgets_machine(). What the
// data, files in memory and decompositions take is of the machine's memory, not of the budgets.
void require_fit(const Recipe& recipe, const ModelFiles& files, const SessionUse& use,
                 const SessionPlan& plan);

// Throws Error(does_not_fit), with that hint, where work on the CPU that books so many bytes does
// not fit: a memory limit must leave room for them and for what the program takes beside them, and
// the machine must have so many free. What it booked before, `held`, is named in the message.
void require_host_memory(int64_t booked, const Recipe& recipe, const std::string& hint,
                         int64_t held = 0);

// Whether require_fit() lets a session of that use be.
bool has_room(const Recipe& recipe, const ModelFiles& files, const SessionUse& use);

// The bytes of the machine's own memory that a run needs, and those that are available, which all
// runs on one machine must share. nullopt: nothing but the recipe's budget limits the run.
struct MachineMemory {
  int64_t needed = 0;
  std::optional<int64_t> available;
};
MachineMemory machine_memory(const Recipe& recipe, const SessionUse& use, const SessionPlan& plan);

}  // namespace jackscrew
