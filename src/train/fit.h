// The fastest recipe that keeps to a budget.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "train/plan.h"

namespace jackscrew {

struct Fit {
  Recipe recipe;
  std::vector<std::string> settings;  // what differs from the recipe asked for: "name=value"
  SessionPlan plan;
};

// Tries recomputation, smaller micro-batches with as much more accumulation, 8-bit optimizer
// states, narrower storage, fewer active parameters and masters in files, alone and together, in
// the order of what they cost in time; each is rehearsed. The recipe's device_memory and
// host_memory are the budget. nullopt when nothing fits.
std::optional<Fit> fastest_fit(const Recipe& recipe, const ModelFiles& files,
                               std::span<const LearnerTable> learners);

}  // namespace jackscrew
