// What the emulated runtime says of the machine; tests set it.
#pragma once

#include "tests/support/cuda_emulation/cuda_runtime_api.h"

namespace jackscrew::cuda_emulation {

struct Machine {
  int driver = CUDART_VERSION;  // 0: none
  int gpus = 1;
  int capability = 90;
  size_t cudnn = 92400;           // cuDNN's version; 0: none
  int64_t cudnn_calls = 0;        // of its attention
  size_t cudnn_shapes = 0;        // that it knows
  int64_t calls_left = kEndless;  // of those that reach the GPU, until it is lost and they fail

  static constexpr int64_t kEndless = int64_t{1} << 60;
};

Machine& machine();

// What a call that reaches the GPU returns.
cudaError_t reach_gpu();

}  // namespace jackscrew::cuda_emulation
