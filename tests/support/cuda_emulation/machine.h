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
  size_t shared_memory = size_t{227}
                         << 10;    // bytes that a block may ask for; 99 KiB on sm_86, 89, 120
  size_t most_pitch = 0x7FFFFFFF;  // bytes
  // What cuBLASLt has an algorithm for: promises of alignment up to so many bytes, and a workspace.
  uint32_t cublaslt_most_alignment = 256;
  bool cublaslt_takes_workspace = true;

  static constexpr int64_t kEndless = int64_t{1} << 60;
};

Machine& machine();

// What a call that reaches the GPU returns.
cudaError_t reach_gpu();

// What the driver says of a launch that no GPU does, before anything runs; else success.
cudaError_t check_launch(dim3 blocks, dim3 threads, size_t dynamic_bytes, size_t argument_bytes);

}  // namespace jackscrew::cuda_emulation
