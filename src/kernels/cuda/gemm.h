// Matrix products in f32 and bf16 by cuBLASLt, with a plan kept for every shape.
#pragma once

#include <map>
#include <tuple>

#include "kernels/cuda/cublaslt.h"
#include "kernels/ops.h"

namespace jackscrew::cuda {

class Gemm {
 public:
  // `workspace` is device memory for the library, at most `workspace_bytes` at a time.
  Gemm(const CublasLt& library, void* workspace, size_t workspace_bytes);
  ~Gemm();
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // What else than op(a) · op(b) makes c = addend + scale · op(a) · op(b).
  struct With {
    const Tensor* addend = nullptr;  // null: nothing is added. Its rows lie as those of c (lies_as)
    float scale = 1.0f;
  };
  // Whether their types and rows allow that `addend` is added to a result in c.
  static bool lies_as(const Tensor& c, const Tensor& addend);

  // See Ops::gemm. Issued on a stream (a cudaStream_t).
  void run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
           const Tensor& c, const With& with, void* stream);

 private:
  // m, n, k; the rows' strides; alignments in bytes, all of a, b and c (with what is added to it);
  // which are transposed; types of the operands and of c.
  using Key = std::tuple<int64_t, int64_t, int64_t, int64_t, int64_t, int64_t, uint32_t, uint32_t,
                         uint32_t, bool, bool, DType, DType>;
  struct Plan {
    CublasLtDescription description = nullptr;
    CublasLtLayout a = nullptr, b = nullptr, c = nullptr;
    CublasLtAlgorithm algorithm{};
  };
  // c and what is added to it are at multiples of `alignment` bytes.
  Plan make_plan(const Tensor& a, bool ta, const Tensor& b, bool tb, const Tensor& c,
                 uint32_t alignment) const;
  void forget_plans();

  const CublasLt& library_;
  CublasLtHandle handle_ = nullptr;
  void* workspace_;
  size_t workspace_bytes_;
  std::map<Key, Plan> plans_;
};

}  // namespace jackscrew::cuda
