// The constant of products of bytes that row kernels and Ops share.
#pragma once

#include <cstdint>

namespace jackscrew {

// Columns of a matrix of bytes that share a scale where rows have more than one: few enough to keep
// an outlier's company small, enough to make scaling cheap beside the sums.
inline constexpr int64_t kInt8Group = 64;

}  // namespace jackscrew
