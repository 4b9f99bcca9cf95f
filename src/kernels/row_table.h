// Defines the RowKernel tables of a .rows.h. Included by the sources that cmake/RowKernels.cmake
// generates, behind the row_entry.h of kernels/cuda/ or kernels/no_cuda/, and by nothing else.
#pragma once

#include <cstdint>

#define JACKSCREW_ROW_KERNEL(Args)                                                                 \
  namespace v3 {                                                                                   \
  void run_##Args(const void* args, int64_t begin, int64_t end);                                   \
  }                                                                                                \
  namespace v4 {                                                                                   \
  void run_##Args(const void* args, int64_t begin, int64_t end);                                   \
  }                                                                                                \
  JACKSCREW_DECLARE_CUDA_ROWS(Args)                                                                \
  template <>                                                                                      \
  const RowKernel& row_kernel<Args>() {                                                            \
    static constexpr RowKernel kTable{#Args,                                                       \
                                      sizeof(Args),                                                \
                                      v3::run_##Args,                                              \
                                      v4::run_##Args,                                              \
                                      JACKSCREW_CUDA_ROWS(Args),                                   \
                                      BatchedKernel<Args> ? JACKSCREW_CUDA_BATCH(Args) : nullptr}; \
    return kTable;                                                                                 \
  }

#include "kernels/row_kernel.h"
