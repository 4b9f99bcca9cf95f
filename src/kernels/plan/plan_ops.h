// PlanOps: the Ops of the plan device. They stand for the Ops of a real device but compute nothing:
// they have the same capabilities and take exactly the same from arenas.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace jackscrew {

// The part that is the same for every device.
class PlanOps : public Ops {
 public:
  using Ops::Ops;

  bool plans_only() const override { return true; }
  void gemm(const Tensor&, Transpose, const Tensor&, Transpose, const Tensor&,
            Accumulate) override {}
  void copy(const Tensor&, const Tensor&) override {}
  void zero(const Tensor&) override {}

 protected:
  void launch_rows(const RowKernel&, const void*, int64_t) override {}
};

// The plan Ops that stand for CpuOps.
std::unique_ptr<Ops> make_plan_ops(int threads, IsaLevel isa);

}  // namespace jackscrew
