// CudaOps: cuBLASLt for matrix products, our own attention (or cuDNN's, forward) and int8 products,
// row kernels with a block of threads for each row.
#pragma once

#include <memory>

#include "kernels/cuda/cublaslt.h"
#include "kernels/cuda/cudnn_attention.h"
#include "kernels/ops.h"

namespace jackscrew::cuda {

struct GpuInfo {
  std::string level;            // "sm_90"
  int64_t shared_memory_bytes;  // that a block of threads may take
};

struct GpuLibraries {
  const CublasLt* cublaslt = nullptr;
  const CudnnLibrary* cudnn = nullptr;  // null: attention is ours
};

// On the GPU that the calling thread has set.
std::unique_ptr<Ops> make_cuda_ops(const GpuLibraries& libraries, const GpuInfo& gpu,
                                   Memory& memory, int threads, IsaLevel isa);
std::unique_ptr<Ops> make_cuda_plan_ops(const GpuInfo& gpu, Memory& memory, int threads,
                                        IsaLevel isa);

}  // namespace jackscrew::cuda
