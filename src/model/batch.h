// A micro-batch on the device: packed sequences and their targets.
#pragma once

#include "tensor/tensor.h"

namespace jackscrew {

struct Batch {
  Tensor ids;                 // i32 [tokens]
  Tensor positions;           // i32 [tokens], restarting with each sequence
  Tensor cu_seqlens;          // i32 [sequences + 1]
  Tensor target_rows;         // i32 [targets], the tokens whose successor is to be predicted
  Tensor targets;             // i32 [targets], those successors
  int64_t token_offset = 0;   // global index of the first token in the run
  int64_t target_offset = 0;  // index of the first target in the step

  int64_t tokens() const { return ids.size(); }
  int64_t sequences() const { return cu_seqlens.size() - 1; }
};

}  // namespace jackscrew
