// What kernels need of the compiler for GPUs, in one place: tests put another file of this name in
// front of it, with which the same kernels run on the CPU (tests/support/cuda_emulation).
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
  extern __shared__ __align__(16) float dynamic_shared[];
  return dynamic_shared;
}
__device__ inline uint16_t* dynamic_halves() {
  return reinterpret_cast<uint16_t*>(dynamic_floats());
}

// Stores 4, 8 or 16 bytes at once in global memory, at a multiple of as many. Left to itself the
// compiler takes words apart.
template <int kWords>
__device__ inline void store_words(const uint32_t (&words)[kWords], void* to) {
  static_assert(kWords == 1 || kWords == 2 || kWords == 4);
  if constexpr (kWords == 4) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(words[0]), "r"(words[1]), "r"(words[2]), "r"(words[3])
                 : "memory");
  } else if constexpr (kWords == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(__cvta_generic_to_global(to)),
                 "r"(words[0]), "r"(words[1])
                 : "memory");
  } else {
    *static_cast<uint32_t*>(to) = words[0];
  }
}

// 2^x to about 2 ulp; 0 for -infinity.
__device__ inline float exp2_approximate(float x) {
  float power;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(x));
  return power;
}

// Two floats rounded to bf16, to nearest with ties to even; `low` in the low half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

// c [16, 8] += a [16, 32] · b [32, 8] of signed bytes, by a warp. Every thread holds the fragments
// that the PTX ISA gives it for mma.m16n8k32.
__device__ inline void mma_s8(int32_t (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// c [16, 8] += a [16, 16] · b [16, 8] of bf16 with sums in f32, by a warp, likewise for
// mma.m16n8k16.
__device__ inline void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Loads four 8 x 8 matrices of 16-bit elements from shared memory, by a warp: `row` of thread 8 m +
// r is row r of matrix m, 16 bytes at a multiple of 16. Word m of a thread has elements [thread /
// 4, thread % 4 * 2] of matrix m and the next of the row; transposed, those of the transposed
// matrix.
__device__ inline void load_matrices(uint32_t (&words)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}
__device__ inline void load_matrices_transposed(uint32_t (&words)[4], const uint16_t* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row)))
               : "memory");
}

// Begins to copy 16 bytes (4 bytes) from memory to shared memory, both at multiples of as many;
// zeros where nothing is `there`, which is then not read. A thread's copies are one group up to its
// next commit_copies().
__device__ inline void copy_16_bytes(void* to, const void* from, bool there) {
  asm volatile(
      "{\n.reg .pred absent;\nsetp.eq.u32 absent, %2, 0;\n"
      "cp.async.cg.shared.global [%0], [%1], 16, absent;\n}"
      :
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
        "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(there))
      : "memory");
}
__device__ inline void copy_4_bytes(void* to, const void* from, bool there) {
  asm volatile(
      "{\n.reg .pred absent;\nsetp.eq.u32 absent, %2, 0;\n"
      "cp.async.ca.shared.global [%0], [%1], 4, absent;\n}"
      :
      : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
        "l"(__cvta_generic_to_global(from)), "r"(static_cast<uint32_t>(there))
      : "memory");
}
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" : : : "memory");
}
// Waits for the thread's groups but the last kLeft. Other threads see what it copied after the next
// barrier.
template <int kLeft>
__device__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(kLeft) : "memory");
}

}  // namespace jackscrew::cuda
