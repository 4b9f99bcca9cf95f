// Ops that count what passes through them.
#pragma once

#include <memory>
#include <utility>

#include "kernels/ops.h"

namespace jackscrew {

// Gives access to what Ops keeps for its own launch().
class OpsLaunch : public Ops {
 public:
  static constexpr auto kRows = &OpsLaunch::launch_rows;
};

class CountingOps : public Ops {
 public:
  explicit CountingOps(std::unique_ptr<Ops> inner)
      : Ops(inner->threads(), inner->isa()), inner_(std::move(inner)) {}

  int64_t multiply_adds = 0;       // of gemm() and gemm_int8()
  int64_t multiply_adds_int8 = 0;  // of the latter
  int64_t attention_backwards = 0;
  void reset() { multiply_adds = multiply_adds_int8 = attention_backwards = 0; }

  std::string level() const override { return inner_->level(); }
  bool plans_only() const override { return inner_->plans_only(); }
  bool has_bf16() const override { return inner_->has_bf16(); }
  void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
            const Tensor& c, Accumulate accumulate) override {
    multiply_adds += c.size() * (transpose_a == Transpose::yes ? a.rows() : a.cols());
    inner_->gemm(a, transpose_a, b, transpose_b, c, accumulate);
  }
  void gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c,
                 Accumulate accumulate, Arena& scratch) override {
    multiply_adds += c.size() * a.codes.cols();
    multiply_adds_int8 += c.size() * a.codes.cols();
    inner_->gemm_int8(a, b, transpose_b, c, accumulate, scratch);
  }
  int32_t int8_limit() const override { return inner_->int8_limit(); }
  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& out, const Tensor& lse,
                         Arena& scratch) override {
    inner_->attention_forward(shape, q, k, v, out, lse, scratch);
  }
  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                          Arena& scratch) override {
    ++attention_backwards;
    inner_->attention_backward(shape, q, k, v, out, lse, dout, dq, dk, dv, scratch);
  }
  void copy(const Tensor& to, const Tensor& from) override { inner_->copy(to, from); }
  void zero(const Tensor& tensor) override { inner_->zero(tensor); }

 protected:
  void launch_rows(const RowKernel& kernel, const void* args, int64_t rows) override {
    ((*inner_).*OpsLaunch::kRows)(kernel, args, rows);
  }

 private:
  std::unique_ptr<Ops> inner_;
};

}  // namespace jackscrew
