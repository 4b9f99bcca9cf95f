// Row kernels in a build with CUDA: row_cuda.cuh defines them.
#pragma once

#define JACKSCREW_DECLARE_CUDA_ROWS(Args)                                              \
  namespace cuda {                                                                     \
  int run_##Args(const void* args, int64_t rows, void* stream);                        \
  int batch_##Args(const void* args, const int64_t* rows, int launches, void* stream); \
  }
#define JACKSCREW_CUDA_ROWS(Args) cuda::run_##Args
#define JACKSCREW_CUDA_BATCH(Args) cuda::batch_##Args
