// What each rank of a run will take and send, found without starting the ranks.
#pragma once

#include <algorithm>
#include <functional>
#include <vector>

#include "session/plan.h"

namespace jackscrew {

struct RanksPlan {
  Layout layout;
  std::vector<int64_t> stage_split;  // see Place
  std::vector<SessionPlan> ranks;    // [ranks]
  std::vector<int> like;             // [ranks]: the first rank of the same stage, device and budget
  std::vector<bool> fits;            // [ranks]: within its budget
  double bubble = 0;                 // the share of a step that a stage waits, if all are equal

  bool all_fit() const { return std::ranges::all_of(fits, std::identity()); }
};

// Throws Error(usage) where the ranks cannot share the recipe's work.
RanksPlan plan_ranks(const Recipe& recipe, const ModelFiles& files, int ranks);

// The array "ranks" of `plan --json`.
std::string ranks_json(const RanksPlan& plan);

}  // namespace jackscrew
