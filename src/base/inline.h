// JACKSCREW_INLINE, for every function that row kernels call: force-inlined, so that no copy
// compiled for one instruction set can be linked into code for another.
// JACKSCREW_INLINE_LAMBDA, behind the parameters of a lambda there that GCC would find too large to
// inline.
#pragma once

#if defined(__CUDACC__)
#define JACKSCREW_INLINE __host__ __device__ __forceinline__
#define JACKSCREW_INLINE_LAMBDA
#else
#define JACKSCREW_INLINE __attribute__((always_inline)) inline
#define JACKSCREW_INLINE_LAMBDA __attribute__((always_inline))
#endif
