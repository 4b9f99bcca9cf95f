// Which of its options each of many things gets, so that all together keep to a size and cost
// least: the multiple-choice knapsack problem, solved exactly.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace jackscrew {

struct RateOption {
  int64_t size = 0;  // not negative
  double cost = 0;   // finite
};

struct RateChoice {
  std::vector<size_t> options;  // of each item, the number of its option
  int64_t size = 0;
  double cost = 0;
};

// The choice of least cost with a size of at most `limit`; of equal ones the smallest. nullopt
// where even the smallest options are too large.
//
// A price on size (Lagrange) makes items independent, and bounds from below what any choice costs;
// a greedy choice bounds it from above. What lies between is small, and is searched by dynamic
// programming over the items: of all partial choices kept are those that none of another is both
// smaller and cheaper than, and that may still end within the bounds. Every item must have an
// option.
std::optional<RateChoice> cheapest_choice(const std::vector<std::vector<RateOption>>& items,
                                          int64_t limit);

}  // namespace jackscrew
