// PlanOps: the plan device's Ops. They do no arithmetic, and stand for the Ops of a device: they
// can do the same and take from arenas exactly what those take.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace jackscrew {

// What is alike for every device.
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

// For CpuOps.
std::unique_ptr<Ops> make_plan_ops(int threads, IsaLevel isa);

}  // namespace jackscrew
