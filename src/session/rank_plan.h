// What each rank of a run will take and send, found without starting the ranks.
#pragma once

#include <vector>

#include "session/plan.h"

namespace jackscrew {

struct RanksPlan {
  Layout layout;
  std::vector<int64_t> stage_split;  // see Place
  std::vector<SessionPlan> stages;   // the plan of one rank per stage: replicas are alike
  double bubble = 0;                 // the share of a step that a stage waits, if all are equal
};

// Whether every rank stays within the recipe's budget.
bool all_fit(const Recipe& recipe, const RanksPlan& plan);

// Throws Error(usage) where the ranks cannot share the recipe's work.
RanksPlan plan_ranks(const Recipe& recipe, const ModelFiles& files, int ranks);

// The array "ranks" of `plan --json`.
std::string ranks_json(const RanksPlan& plan);

}  // namespace jackscrew
