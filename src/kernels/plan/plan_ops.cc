#include "kernels/plan/plan_ops.h"

#include "kernels/attention_scratch.h"
#include "kernels/int8_scratch.h"

namespace jackscrew {

namespace {

class CpuPlanOps : public PlanOps {
 public:
  using PlanOps::PlanOps;

  bool has_bf16() const override { return isa() >= IsaLevel::v4_bf16; }

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
};

}  // namespace

std::unique_ptr<Ops> make_plan_ops(int threads, IsaLevel isa) {
  return std::make_unique<CpuPlanOps>(threads, isa);
}

}  // namespace jackscrew
