// Checks and conversions of arguments that the Ops of every device share.
#pragma once

#include "kernels/attention_arguments.h"
#include "kernels/ops.h"

namespace jackscrew {

// Throw Error(generic) where the tensors of Ops::copy, the matrices of Ops::gemm or those of
// Ops::gemm_int8 do not fit each other, and where an int8 product has an empty contraction.
void check_copy(const Tensor& to, const Tensor& from);
void check_gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                const Tensor& c);
void check_gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c);

// Throws Error(generic) where tensors of attention do not have the type that a kernel is for, or
// the shape does not allow that type.
void check_attention(DType dtype, const AttentionShape& shape,
                     std::initializer_list<Tensor> tensors);

// Sets the arguments of Ops::attention_forward.
template <class Element>
void set_attention(AttentionArguments<Element>& args, const AttentionShape& shape, const Tensor& q,
                   const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse) {
  check_attention(DTypeOf<Element>::value, shape, {q, k, v, out});
  args.cu_seqlens_q = shape.cu_seqlens_q.data<int32_t>();
  args.cu_seqlens_k = shape.cu_seqlens_k.data<int32_t>();
  args.sequences = shape.sequences;
  args.num_heads = shape.num_heads;
  args.num_kv_heads = shape.num_kv_heads;
  args.head_dim = shape.head_dim;
  args.tokens_q = q.rows();
  args.tokens_k = k.rows();
  args.scale = shape.scale;
  args.window = shape.window;
  args.bf16_operands = shape.operands == DType::bf16;
  args.q = q.data<Element>();
  args.k = k.data<Element>();
  args.v = v.data<Element>();
  args.out = out.data<Element>();
  args.lse = lse.data<float>();
  args.q_stride = q.row_stride();
  args.k_stride = k.row_stride();
  args.v_stride = v.row_stride();
  args.out_stride = out.row_stride();
}

// Sets the further arguments of Ops::attention_backward.
template <class Element>
void set_attention_gradients(AttentionArguments<Element>& args, const AttentionShape& shape,
                             const Tensor& dout, const Tensor& dq, const Tensor& dk,
                             const Tensor& dv) {
  check_attention(DTypeOf<Element>::value, shape, {dout});
  args.dout = dout.data<Element>();
  args.dq = dq.data<float>();
  args.dk = dk.data<float>();
  args.dv = dv.data<float>();
  args.dout_stride = dout.row_stride();
  args.dq_stride = dq.row_stride();
  args.dk_stride = dk.row_stride();
  args.dv_stride = dv.row_stride();
}

}  // namespace jackscrew
