// Formats in blocks, encoded so that somebody may answer to every element's rounding: quantize
// moves the elements that are not rounded yet. Runs on the host.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "quant/format.h"

namespace jackscrew {

// Hears what value x[i] of a block gets, and may move the elements behind it.
using ElementRounded = std::function<void(int64_t i, float value)>;
// Encodes a block x [columns] element after element: x[i] is element order[i] of the block, and
// elements with one scale stand together. The scale of a group is chosen when its first element is
// due, for x as it is by then; what groups have in common is chosen at the beginning. Scales are
// those with the least squared error under `weights` [columns], of x.
using RoundBlock = void (*)(float* x, const int32_t* order, const double* weights,
                            const ElementRounded& rounded, uint8_t* out);
// Brings the blocks of a matrix, one after another, into the order of its storage.
using PlaceBlocks = void (*)(std::span<const uint8_t> blocks, const Storage& storage);

struct BlockRounding {
  RoundBlock round = nullptr;   // null: the format has no such blocks
  int64_t columns = 0;          // of a block; they must divide the columns of a matrix
  int64_t bytes = 0;            // of a block
  PlaceBlocks place = nullptr;  // null: storage is the blocks one after another
};
// Whose `round` is null for formats that have none.
BlockRounding block_rounding(const Format& format);

}  // namespace jackscrew
