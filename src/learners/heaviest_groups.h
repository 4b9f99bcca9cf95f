// Which groups of weights take the most memory of all that can be active at once.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace jackscrew {

// The set of groups with the largest sum of `weights` whose sizes sum to at most `capacity` (0-1
// knapsack). Groups of one kind are taken in bundles, of 1, 2, 4 ... Exact where there are up to
// 2^16 sums of sizes, and 2^22 for all bundles together, as in a model of equal blocks. Where there
// are more, nothing that fits is heavier, but for each bundle the sizes may exceed the capacity by
// a part in 2^16, or in the share of 2^22 that each bundle has, if that is less.
std::vector<int32_t> heaviest_groups(std::span<const int64_t> sizes,
                                     std::span<const int64_t> weights, int64_t capacity);

}  // namespace jackscrew
