// Defines the RowKernel tables of a .rows.h. Included first by the sources that
// cmake/RowKernels.cmake generates, and by nothing else.
#pragma once

#include <cstdint>

#define JACKSCREW_ROW_KERNEL(Args)                                                          \
  namespace v3 {                                                                            \
  void run_##Args(const void* args, int64_t begin, int64_t end);                            \
  }                                                                                         \
  namespace v4 {                                                                            \
  void run_##Args(const void* args, int64_t begin, int64_t end);                            \
  }                                                                                         \
  template <>                                                                               \
  const RowKernel& row_kernel<Args>() {                                                     \
    static constexpr RowKernel kTable{#Args, sizeof(Args), v3::run_##Args, v4::run_##Args}; \
    return kTable;                                                                          \
  }

#include "kernels/row_kernel.h"
