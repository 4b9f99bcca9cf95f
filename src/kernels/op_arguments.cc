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
      (b.scales.size() != n && (tb || !b.scales.empty())) || a.codes.dtype() != DType::i8 ||
      b.codes.dtype() != DType::i8 || c.dtype() != DType::f32) {
    fail(ErrorKind::generic, "gemm_int8 of {} with scales {} and {}{} with {} scales into {}",
         a.codes.describe(), a.scales.describe(), b.codes.describe(), tb ? "ᵀ" : "",
         b.scales.size(), c.describe());
  }
  if (k == 0) fail(ErrorKind::generic, "gemm_int8 over an empty contraction");
}

void check_attention(DType dtype, const AttentionShape& shape,
                     std::initializer_list<Tensor> tensors) {
  const bool known = dtype == DType::f32 || shape.operands == dtype;
  for (const Tensor& tensor : tensors) {
    if (known && tensor.dtype() == dtype) continue;
    fail(ErrorKind::generic, "attention in {} of a tensor {}", dtype_name(dtype),
         tensor.describe());
  }
}

}  // namespace jackscrew
