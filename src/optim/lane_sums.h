// A step may be cut into lanes: each accumulates a gradient of its own, and these are summed in a
// tree that depends only on the number of lanes. Where one place works through several lanes, the
// sums of those that have ended wait beside the gradient of the one that runs.
#pragma once

#include <bit>
#include <cstdint>

namespace jackscrew {

// The most sums that wait at once where one place works through so many lanes: they are sums of 1,
// 2, 4 ... lanes, no two of the same number.
inline int64_t waiting_lane_sums(int64_t lanes) {
  return lanes <= 1 ? 0 : static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(lanes))) - 1;
}

}  // namespace jackscrew
