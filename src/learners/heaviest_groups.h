// Which groups of weights take the most memory of all that can be active at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace jackscrew {

// The set of groups with the largest sum of `weights` whose sizes sum to at most `capacity` (0-1
// knapsack). Exact, and quick where groups come in few kinds, as in a model of equal blocks.
std::vector<int32_t> heaviest_groups(std::span<const int64_t> sizes,
                                     std::span<const int64_t> weights, int64_t capacity);

}  // namespace jackscrew
