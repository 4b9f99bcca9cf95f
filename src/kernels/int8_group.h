// Constants of int8 products that row kernels and Ops share.
#pragma once

#include <cstdint>

namespace jackscrew {

// Columns of an int8 matrix that share a scale, where rows have more than one: few enough that an
// outlier costs few others precision, enough that scaling is cheap beside the sums.
inline constexpr int64_t kInt8Group = 64;

// The depth over which int8 products sum before they apply the scales of columns and add to c. On
// the CPU, b is packed and multiplied in pieces of this depth: at most 256 KiB, a quarter of L2,
// from which every tile reads it. Shorter pieces would stay in L1, but c would be read and written
// more often. Last bits depend on it, so it is the same on every device.
inline constexpr int64_t kInt8Depth = 4096;

}  // namespace jackscrew
