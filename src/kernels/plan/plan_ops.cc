#include "kernels/plan/plan_ops.h"

#include "kernels/attention_scratch.h"
#include "kernels/int8_scratch.h"

namespace jackscrew {

namespace {

class PlanOps : public Ops {
 public:
  using Ops::Ops;

  bool plans_only() const override { return true; }
  bool has_bf16() const override { return isa() >= IsaLevel::v4_bf16; }

  void gemm(const Tensor&, Transpose, const Tensor&, Transpose, const Tensor&,
            Accumulate) override {}

  void gemm_int8(const Int8Rows& a, const Int8Rows&, Transpose, const Tensor&, Accumulate,
                 Arena& scratch) override {
    const Arena::Frame frame(scratch);
    int8_scratch(isa(), a.codes.rows(), a.codes.cols(), threads(), scratch);
  }
  int32_t int8_limit() const override { return int8_code_limit(isa()); }

  void attention_forward(const AttentionShape& shape, const Tensor&, const Tensor& k, const Tensor&,
                         const Tensor&, const Tensor&, Arena& scratch) override {
    const Arena::Frame frame(scratch);
    attention_forward_scratch(shape, k.rows(), threads(), scratch);
  }

  void attention_backward(const AttentionShape& shape, const Tensor&, const Tensor& k,
                          const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, Arena& scratch) override {
    const Arena::Frame frame(scratch);
    attention_backward_scratch(shape, k.rows(), threads(), scratch);
  }

  Event copy_async(const Tensor&, const Tensor&) override { return {}; }
  void wait(Event) override {}
  void zero(const Tensor&) override {}

 protected:
  void launch_rows(const RowKernel&, const void*, int64_t) override {}
};

}  // namespace

std::unique_ptr<Ops> make_plan_ops(int threads, IsaLevel isa) {
  return std::make_unique<PlanOps>(threads, isa);
}

}  // namespace jackscrew
