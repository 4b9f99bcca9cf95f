// The hardware that tests run on.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/isa.h"

namespace jackscrew {

// The level that --isa=LEVEL chose for this test program; without the flag, the machine's highest.
// Defined in tests/main.cc.
IsaLevel test_isa();

inline std::unique_ptr<Ops> make_test_ops(int threads = 2) {
  return make_cpu_ops(threads, test_isa());
}

}  // namespace jackscrew
