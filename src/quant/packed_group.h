// One group of a packed row: shared by the format (packed.h) and its row kernels.
#pragma once

#include <cstdint>

namespace jackscrew {

// In the order in which columns are stored.
struct PackedGroup {
  int32_t first;   // stored column
  int32_t count;   // columns
  int32_t bits;    // of a code
  int32_t offset;  // of the group's codes in those of a row, bytes
};

}  // namespace jackscrew
