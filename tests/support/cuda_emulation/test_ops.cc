#include "tests/support/test_ops.h"

#include "kernels/cuda/cuda_ops.h"
#include "tests/support/cuda_emulation/streams.h"

namespace jackscrew {

std::unique_ptr<Ops> make_test_ops(int threads) {
  const cuda_emulation::EagerStreams eager;
  static Memory memory("host", make_host_backing(), 0);
  constexpr int64_t kSharedMemory = int64_t{227} << 10;  // of Hopper
  return cuda::make_cuda_ops({.cublaslt = &cuda::open_cublaslt({})}, {"sm_90", kSharedMemory},
                             memory, threads, test_isa());
}

}  // namespace jackscrew
