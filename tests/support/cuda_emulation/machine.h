// What the emulated runtime says of the machine; tests set it.
#pragma once

#include "tests/support/cuda_emulation/cuda_runtime_api.h"

namespace jackscrew::cuda_emulation {

struct Machine {
  int driver = CUDART_VERSION;  // 0: none
  int gpus = 1;
  int capability = 90;
  bool lost = false;  // every call that reaches the GPU fails
};

Machine& machine();

}  // namespace jackscrew::cuda_emulation
