// A step may be cut into lanes: each accumulates a gradient of its own, and these are summed in a
// tree that depends on nothing but their number. Where one place works through several lanes, sums
// of those that have ended wait beside the gradient of the one that runs.
#pragma once

#include <bit>
#include <cstdint>

namespace jackscrew {

// How many sums wait at once, at most, where one place works through so many lanes: they are sums
// of 1, 2, 4 ... lanes, and no two of the same number wait.
inline int64_t waiting_lane_sums(int64_t lanes) {
  return lanes <= 1 ? 0 : static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(lanes))) - 1;
}

}  // namespace jackscrew
