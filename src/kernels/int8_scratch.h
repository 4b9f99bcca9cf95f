// The scratch that int8 products take from their arena, in one place so that CpuOps and PlanOps
// agree.
#pragma once

#include <algorithm>

#include "kernels/cpu/int8.h"
#include "kernels/ops.h"

namespace jackscrew {

inline int32_t int8_code_limit(IsaLevel isa) {
  return int8_shift(isa) - 1;
}

struct Int8Scratch {
  Tensor a;     // u8 [m, padded k], codes plus the shift
  Tensor b;     // u8 [threads, columns of a tile * depth], packed
  Tensor sums;  // i32 [threads, columns of a tile * groups of the depth]
};

inline Int8Scratch int8_scratch(IsaLevel isa, int64_t m, int64_t k, int threads, Arena& arena) {
  const int64_t columns = int8_tile(isa).columns;
  const int64_t depth = std::min(round_up(k, kInt8Step), kInt8Depth);
  return {arena.tensor(DType::u8, {m, int8_row_bytes(k)}),
          arena.tensor(DType::u8, {threads, columns * depth}),
          arena.tensor(DType::i32, {threads, columns * ceil_div(depth, kInt8Group)})};
}

}  // namespace jackscrew
