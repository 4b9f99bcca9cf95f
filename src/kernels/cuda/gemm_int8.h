// Int8 matrix products on GPUs (gemm_int8.cu).
#pragma once

#include <cstdint>

namespace jackscrew::cuda {

// See Ops::gemm_int8. Rows of matrices lie `stride` elements apart.
struct GemmInt8 {
  const int8_t* a;        // [m, k]
  const float* a_scales;  // [m, groups]
  const int8_t* b;        // [n, k] when transposed, else [k, n]
  const float* b_scales;  // [n]; null: all 1
  float* c;               // [m, n]
  int64_t a_stride, a_scales_stride, b_stride, c_stride;
  int64_t m, n, k;
  bool transpose_b, accumulate;
};

// Issues the work on a stream (a cudaStream_t); returns a cudaError_t.
int gemm_int8(const GemmInt8& args, void* stream);

}  // namespace jackscrew::cuda
