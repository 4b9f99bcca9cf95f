// The constant of products of bytes that row kernels and Ops share.
#pragma once

#include <cstdint>

namespace jackscrew {

// Columns of a matrix of bytes that share a scale where rows have more than one: few enough to keep
// an outlier's company small, enough to make scaling cheap beside the sums.
inline constexpr int64_t kInt8Group = 64;

// Products of bytes add up so much of the depth before they scale by the columns' scales and add to
// c: on the CPU, what of b is packed, and multiplied, at once: at most 256 KiB, a quarter of L2,
// from which every tile reads it. Shorter pieces would stay in L1, but c would be read and written
// more often. Last bits depend on it, so that it is the same on every device.
inline constexpr int64_t kInt8Depth = 4096;

}  // namespace jackscrew
