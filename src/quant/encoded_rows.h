// How much of a matrix encode() goes through.
#pragma once

#include <algorithm>

#include "quant/format.h"

namespace jackscrew {

// The storage, or on the plan device, where it has no bytes, its first panel: none is larger, so
// the plan's arenas come out the same, and matrices of a large model have millions of them.
inline Storage encoded_rows(Storage storage) {
  if (storage.bytes.raw() == nullptr) {
    storage.rows = std::min(storage.rows, encode_panel_rows(storage.cols));
  }
  return storage;
}

}  // namespace jackscrew
