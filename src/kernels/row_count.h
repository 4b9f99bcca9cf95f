// Which rows of a run a tensor holds. Random numbers are indexed by that, so that the same rows get
// the same numbers however the tokens of a step are split.
#pragma once

#include <cstdint>

#include "kernels/row_kernel.h"

namespace jackscrew {

// What changes from one micro-batch to the next is in device memory, so that recorded work can be
// replayed.
struct RowCount {
  const int64_t* before = nullptr;  // rows before this micro-batch, on the device; null: none
  int64_t first = 0;                // the tensor's first row in the micro-batch

  JACKSCREW_ROW int64_t of(int64_t row) const {
    return (before != nullptr ? *before : 0) + first + row;
  }
};

}  // namespace jackscrew
