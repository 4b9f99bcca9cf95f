// What every computation is given: the Ops to compute with, an arena for what ends with the call,
// the scalars of the current step, and which rows these are.
#pragma once

#include "base/progress_callback.h"
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
  // Whether backward adds the step's last share of each gradient.
  bool completes_gradients = false;
  // Called with 1 after every block, forward and backward. May be null.
  const ProgressCallback* block_passed = nullptr;
};

}  // namespace jackscrew
