#include "kernels/op_arguments.h"

#include "base/checked.h"
#include "base/error.h"

namespace jackscrew {

void check_copy(const Tensor& to, const Tensor& from) {
  if (to.dtype() != from.dtype() || to.rows() != from.rows() || to.cols() != from.cols()) {
    fail(ErrorKind::generic, "copy of {} to {}", from.describe(), to.describe());
  }
}

void check_gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                const Tensor& c) {
  const bool ta = transpose_a == Transpose::yes;
  const bool tb = transpose_b == Transpose::yes;
  const int64_t k = ta ? a.rows() : a.cols();
  if ((ta ? a.cols() : a.rows()) != c.rows() || (tb ? b.rows() : b.cols()) != c.cols() ||
      (tb ? b.cols() : b.rows()) != k || a.dtype() != b.dtype() ||
      (a.dtype() != DType::f32 && a.dtype() != DType::bf16) ||
      (c.dtype() != DType::f32 && c.dtype() != a.dtype())) {
    fail(ErrorKind::generic, "gemm of {}{} and {}{} into {}", a.describe(), ta ? "ᵀ" : "",
         b.describe(), tb ? "ᵀ" : "", c.describe());
  }
}

void check_gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c) {
  const bool tb = transpose_b == Transpose::yes;
  const int64_t m = c.rows();
  const int64_t n = c.cols();
  const int64_t k = a.codes.cols();
  if (a.codes.rows() != m || a.scales.rows() != m || a.scales.cols() != ceil_div(k, kInt8Group) ||
      (tb ? b.codes.rows() : b.codes.cols()) != n || (tb ? b.codes.cols() : b.codes.rows()) != k ||
      b.scales.size() != (tb ? n : 0) || a.codes.dtype() != DType::i8 ||
      b.codes.dtype() != DType::i8 || c.dtype() != DType::f32) {
    fail(ErrorKind::generic, "gemm_int8 of {} with scales {} and {}{} with {} scales into {}",
         a.codes.describe(), a.scales.describe(), b.codes.describe(), tb ? "ᵀ" : "",
         b.scales.size(), c.describe());
  }
  if (k == 0) fail(ErrorKind::generic, "gemm_int8 over an empty contraction");
}

void set_attention(AttentionArguments& args, const AttentionShape& shape, const Tensor& q,
                   const Tensor& k, const Tensor& v, const Tensor& out, const Tensor& lse) {
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
  args.q = q.data<float>();
  args.k = k.data<float>();
  args.v = v.data<float>();
  args.out = out.data<float>();
  args.lse = lse.data<float>();
  args.q_stride = q.row_stride();
  args.k_stride = k.row_stride();
  args.v_stride = v.row_stride();
  args.out_stride = out.row_stride();
}

void set_attention_gradients(AttentionArguments& args, const Tensor& dout, const Tensor& dq,
                             const Tensor& dk, const Tensor& dv) {
  args.dout = dout.data<float>();
  args.dq = dq.data<float>();
  args.dk = dk.data<float>();
  args.dv = dv.data<float>();
  args.dout_stride = dout.row_stride();
  args.dq_stride = dq.row_stride();
  args.dk_stride = dk.row_stride();
  args.dv_stride = dv.row_stride();
}

}  // namespace jackscrew
