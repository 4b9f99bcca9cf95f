// CpuOps: oneDNN for matrix products, our own attention, row kernels on the OpenMP pool.
#pragma once

#include <memory>

#include "kernels/ops.h"

namespace jackscrew {

// `isa` comes from choose_isa(); `threads` >= 1.
std::unique_ptr<Ops> make_cpu_ops(int threads, IsaLevel isa);

}  // namespace jackscrew
