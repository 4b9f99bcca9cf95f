// PlanOps: the plan device's Ops. Does no arithmetic; takes from arenas exactly what CpuOps takes.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace jackscrew {

std::unique_ptr<Ops> make_plan_ops(int threads, IsaLevel isa);

}  // namespace jackscrew
