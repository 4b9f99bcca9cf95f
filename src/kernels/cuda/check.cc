#include "kernels/cuda/check.h"

#include "base/error.h"

namespace jackscrew::cuda {

void check(cudaError_t status, std::string_view what, const char* full) {
  if (status == cudaSuccess) return;
  cudaGetLastError();  // or the next launch would report it once more
  const std::string said = fmt::format("{}: {}", what, cudaGetErrorString(status));
  if (status == cudaErrorMemoryAllocation) {
    throw Error(ErrorKind::does_not_fit, said, full);
  }
  throw Error(ErrorKind::device, said,
              "what was saved is intact: resume from the last checkpoint, after the GPU's reset "
              "where it is lost (nvidia-smi)");
}

}  // namespace jackscrew::cuda
