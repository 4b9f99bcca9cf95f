// What would help a run to take less memory. Savings are not estimated: every changed recipe is
// rehearsed on the plan device.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "session/plan.h"

namespace jackscrew {

// A change of settings, with the memory that the run then takes and what that saves.
struct Advice {
  std::string settings;
  std::string remark;
  int64_t device = 0, host = 0;                // peaks, in bytes
  int64_t device_saving = 0, host_saving = 0;  // at least one is positive
  int64_t decomposition = 0;                   // as in the plan of the changed run

  int64_t saving() const { return device_saving + host_saving; }
  bool keeps_to(const MemoryBudget& budget) const {
    return budget.holds(device, host, decomposition);
  }
  // "2.0 GiB and 1.0 GiB of the host".
  std::string needs() const;
};

// Every single change that saves memory, shorter sequences and other methods included, the largest
// saving first.
std::vector<Advice> memory_advice(const Recipe& recipe, const ModelFiles& files,
                                  const SessionPlan& plan);

// The change that keeps the run within `budget` at the least cost: one knob, or several together;
// shorter sequences and other methods come last, and very last sequences shorter than those that
// memory_advice() has. nullopt when no change that is tried does. `plan` and `budget` are those of
// `place`, see rehearse_with().
std::optional<Advice> fitting_advice(const Recipe& recipe, const ModelFiles& files,
                                     const SessionPlan& plan, const MemoryBudget& budget,
                                     const std::optional<Place>& place = std::nullopt);

}  // namespace jackscrew
