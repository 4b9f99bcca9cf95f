// What kernels ask of the compiler for GPUs, in one place: tests put another file of this name in
// front of it, under which the same kernels run on the CPU (tests/support/cuda_emulation).
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

namespace jackscrew::cuda {

inline constexpr int kWarp = 32;

struct Launch {
  dim3 blocks, threads;
  size_t dynamic_bytes;  // of shared memory
  cudaStream_t stream;
};

template <class... Args>
cudaError_t launch(void (*kernel)(Args...), const Launch& how,
                   const std::type_identity_t<Args>&... args) {
  constexpr size_t kWithoutAsking = size_t{48} << 10;
  if (how.dynamic_bytes > kWithoutAsking) {
    const cudaError_t allowed = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                                     cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                     static_cast<int>(how.dynamic_bytes));
    if (allowed != cudaSuccess) return allowed;
  }
  kernel<<<how.blocks, how.threads, how.dynamic_bytes, how.stream>>>(args...);
  return cudaGetLastError();
}

// The block's dynamic shared memory.
__device__ inline float* dynamic_floats() {
  extern __shared__ float dynamic_shared[];
  return dynamic_shared;
}

// c [16, 8] += a [16, 32] · b [32, 8] of signed bytes, by a warp. Every thread holds the fragments
// that the PTX ISA gives it for mma.m16n8k32.
__device__ inline void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

}  // namespace jackscrew::cuda
