// One group of a packed row: shared by the format (packed.h) and its row kernels.
#pragma once

#include <cstdint>

namespace jackscrew {

// Columns are counted in the order in which they are stored.
struct PackedGroup {
  int32_t first;   // of its stored columns
  int32_t count;   // columns
  int32_t bits;    // per code
  int32_t offset;  // of its codes within those of a row, in bytes
};

}  // namespace jackscrew
