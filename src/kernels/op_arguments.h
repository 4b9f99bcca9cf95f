// What the Ops of every device do with the arguments of a call before their kernels get them.
#pragma once

#include "kernels/attention_arguments.h"
#include "kernels/ops.h"

namespace jackscrew {

// Throw Error(generic) where the tensors of Ops::copy_async, the matrices of Ops::gemm or those of
// Ops::gemm_int8 do not fit each other, and where a product of bytes has an empty contraction.
void check_copy(const Tensor& to, const Tensor& from);
void check_gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                const Tensor& c);
void check_gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c);

// Fill in what Ops::attention_forward is given, and what Ops::attention_backward is given besides.
void set_attention(AttentionArguments& args, const AttentionShape& shape, const Tensor& q,
                   const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse);
void set_attention_gradients(AttentionArguments& args, const Tensor& dout, const Tensor& dq,
                             const Tensor& dk, const Tensor& dv);

}  // namespace jackscrew
