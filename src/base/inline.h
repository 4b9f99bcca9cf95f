// JACKSCREW_INLINE, for every function that row kernels call: force-inlined, so that no copy
// compiled for one instruction set can be linked into code for another.
#pragma once

#if defined(__CUDACC__)
#define JACKSCREW_INLINE __host__ __device__ __forceinline__
#else
#define JACKSCREW_INLINE __attribute__((always_inline)) inline
#endif
