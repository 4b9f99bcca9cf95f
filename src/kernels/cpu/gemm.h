// Matrix products on the CPU: oneDNN primitives, each run by one thread on one tile of ours.
//
// oneDNN's own threading makes the last bits depend on the number of threads. Here the result is
// cut into tiles by its shape alone, and a tile is computed by a single-threaded library call.
//
// Outside the booked memory, per thread: the scratchpads that oneDNN 2.6 asks for (of the largest
// tiles, 512 x 1088, 2.3 MiB in f32 and 2.1 MiB in bf16), what it allocates while it computes (2.1
// MiB more for such a tile in bf16), a tile that is computed apart from the result (at most 1 MiB)
// and, for bf16 on x86-64-v3 only, 1.25 MiB of widened tiles.
//
// Under a limit on addresses (RLIMIT_AS or RLIMIT_DATA), a product looks for room before oneDNN
// makes its code, and throws Error(does_not_fit) where there is none. This holds in a process whose
// threads share one heap (mallopt(M_ARENA_MAX, 1) before the first thread, as main() does):
// otherwise heaps of other threads may take that room in between, and oneDNN ends the process.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/ops.h"

namespace jackscrew {

class CpuGemm {
 public:
  CpuGemm(int threads, IsaLevel isa);
  ~CpuGemm();
  CpuGemm(const CpuGemm&) = delete;
  CpuGemm& operator=(const CpuGemm&) = delete;

  // See Ops::gemm.
  void run(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
           const Tensor& c, Accumulate accumulate);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace jackscrew
