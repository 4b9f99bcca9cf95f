// What every computation is given: where to compute, where to put what ends with the call, and the
// scalars of the current step.
#pragma once

#include "kernels/ops.h"
#include "kernels/step_scalars.h"

namespace jackscrew {

struct Context {
  Ops& ops;
  Arena& scratch;
  StepScalars* scalars;   // in device memory; null on the plan device
  bool training = false;  // false: evaluation and generation, where nothing is dropped out
};

}  // namespace jackscrew
