// Chooses one option for each of many items so that the total size stays within a limit and the
// total cost is least: the multiple-choice knapsack problem, solved exactly.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace jackscrew {

struct RateOption {
  int64_t size = 0;  // not negative
  double cost = 0;   // finite
};

struct RateChoice {
  std::vector<size_t> options;  // the index of each item's option
  int64_t size = 0;
  double cost = 0;
};

// Returns the choice of least cost whose size is at most `limit`; of equal costs, the smallest.
// nullopt where even the smallest options are too large.
//
// A price on size (a Lagrange multiplier) makes items independent and bounds the cost of any choice
// from below; a greedy choice bounds it from above. The gap between is small and is searched by
// dynamic programming over the items: a partial choice is kept unless another is both smaller and
// cheaper, or it cannot end within the bounds. Every item must have at least one option. `check` is
// called for each item, as hundreds of large ones take more than a minute: what it throws ends the
// search.
std::optional<RateChoice> cheapest_choice(const std::vector<std::vector<RateOption>>& items,
                                          int64_t limit, const std::function<void()>& check = {});

}  // namespace jackscrew
