// How many rows of a matrix encode() processes.
#pragma once

#include <algorithm>

#include "quant/format.h"

namespace jackscrew {

// The storage itself; on the plan device, where it has no bytes, only its first panel. No panel is
// larger, so the planned arenas are the same, and the matrices of a large model have millions of
// panels.
inline Storage encoded_rows(Storage storage) {
  if (storage.bytes.raw() == nullptr) {
    storage.rows = std::min(storage.rows, encode_panel_rows(storage.cols));
  }
  return storage;
}

}  // namespace jackscrew
