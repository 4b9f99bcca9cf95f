// Int8 matrix products on the CPU; see Ops::gemm_int8.
#pragma once

#include "kernels/ops.h"

namespace jackscrew {

void cpu_gemm_int8(int threads, IsaLevel isa, const Int8Rows& a, const Int8Rows& b,
                   Transpose transpose_b, const Tensor& c, Accumulate accumulate, Arena& scratch);

}  // namespace jackscrew
