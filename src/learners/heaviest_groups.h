// Which groups of weights take the most memory of all that can be active at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace jackscrew {

// The set of groups with the largest sum of `weights` whose sizes sum to at most `capacity` (0-1
// knapsack). Exact where there are up to 2^16 sums of sizes, as in a model of equal blocks. Where
// there are more, nothing that fits is heavier, but the sizes may exceed the capacity by a part in
// 2^16 for each kind of groups and power of two up to their number.
std::vector<int32_t> heaviest_groups(std::span<const int64_t> sizes,
                                     std::span<const int64_t> weights, int64_t capacity);

}  // namespace jackscrew
