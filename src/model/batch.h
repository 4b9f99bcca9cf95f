// A micro-batch on the device: packed sequences and their targets.
#pragma once

#include "kernels/row_count.h"
#include "tensor/tensor.h"

namespace jackscrew {

struct Batch {
  Tensor ids;            // i32 [tokens]
  Tensor positions;      // i32 [tokens], restarting with each sequence
  Tensor cu_seqlens;     // i32 [sequences + 1]
  Tensor target_rows;    // i32 [targets], indices of the tokens whose successor is to be predicted
  Tensor targets;        // i32 [targets], ids of those successors
  Tensor counts_before;  // i64 [2], before this micro-batch: tokens of the run, targets of the step

  RowCount tokens_before() const { return {counts_before.columns(0, 1).data<int64_t>()}; }
  RowCount targets_before(int64_t first) const {
    return {counts_before.columns(1, 2).data<int64_t>(), first};
  }
  int64_t tokens() const { return ids.size(); }
  int64_t sequences() const { return cu_seqlens.size() - 1; }
};

}  // namespace jackscrew
