// What every computation is given: where to compute, where to put what ends with the call, the
// scalars of the current step, and which rows these are.
#pragma once

#include "kernels/ops.h"
#include "kernels/row_count.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

struct Context {
  Ops& ops;
  Arena& scratch;
  StepScalars* scalars;   // in device memory; null on the plan device
  bool training = false;  // false: evaluation and generation, where nothing is dropped out
  RowCount rows = {};     // of the tokens, or at the loss head of the targets
  bool last = false;      // of a step's micro-batches: no gradient is formed after its own
};

}  // namespace jackscrew
