// Compiles a .rows.h for the CPU instruction set JACKSCREW_ROW_TARGET (v3 or v4). Included first by
// the sources that cmake/RowKernels.cmake generates, and by nothing else.
#pragma once

#include <cstdint>

#define JACKSCREW_ROW_KERNEL(Args)                                   \
  template <>                                                        \
  const RowKernel& row_kernel<Args>();                               \
  namespace JACKSCREW_ROW_TARGET {                                   \
  void run_##Args(const void* args, int64_t begin, int64_t end);     \
  void run_##Args(const void* args, int64_t begin, int64_t end) {    \
    const Args kernel = *static_cast<const Args*>(args);             \
    for (int64_t row = begin; row < end; ++row) kernel(Team{}, row); \
  }                                                                  \
  }

#include "kernels/row_kernel.h"

namespace jackscrew::JACKSCREW_ROW_TARGET {

// One thread is the whole team: loops are simd loops, reductions may reassociate within the row.
struct Team {
  template <class F>
  JACKSCREW_INLINE void each(int64_t n, F f) const {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) f(i);
  }

  template <class F>
  JACKSCREW_INLINE float sum(int64_t n, F f) const {
    float total = 0.0f;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; ++i) total += f(i);
    return total;
  }

  template <class F>
  JACKSCREW_INLINE double sum_f64(int64_t n, F f) const {
    double total = 0.0;
#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; ++i) total += f(i);
    return total;
  }

  // At least `floor`, which is the result for n == 0.
  template <class F>
  JACKSCREW_INLINE float max(int64_t n, float floor, F f) const {
    float best = floor;
#pragma omp simd reduction(max : best)
    for (int64_t i = 0; i < n; ++i) {
      const float value = f(i);
      best = value > best ? value : best;
    }
    return best;
  }

  // Runs f once for the row.
  template <class F>
  JACKSCREW_INLINE void once(F f) const {
    f();
  }
};

}  // namespace jackscrew::JACKSCREW_ROW_TARGET
