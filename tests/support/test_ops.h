// The hardware that tests run on.
#pragma once

#include <memory>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/isa.h"

namespace jackscrew {

// The level that --isa=LEVEL chose for this test program; without the flag, the machine's highest.
// Defined in tests/main.cc.
IsaLevel test_isa();

// What tests call Ops that work on memory of the host: those of the CPU (tests/test_ops.cc) or, in
// test_cuda, those of the emulated GPU (tests/support/cuda_emulation/test_ops.cc).
std::unique_ptr<Ops> make_test_ops(int threads = 2);

}  // namespace jackscrew
