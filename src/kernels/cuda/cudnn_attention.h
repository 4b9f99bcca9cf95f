// cuDNN's attention (attention=cudnn), called through its frontend. Only the forward pass: its
// backward pass is deterministic on few GPUs, and takes hundreds of MB there (docs/performance.md).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/half.h"
#include "kernels/cuda/attention.h"

namespace jackscrew::cuda {

struct CudnnLibrary {
  std::string path;
  size_t version;  // 10000 * major + 100 * minor + patch
};

// Loads the library at the first call, as a SharedLibrary. Throws Error(device) as that does, if
// the library is too old, and if the program was built without cuDNN's headers.
const CudnnLibrary& open_cudnn(const std::vector<fs::path>& environments);

class CudnnAttention {
 public:
  CudnnAttention() = default;
  virtual ~CudnnAttention() = default;
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // Makes the plan that forward() needs, which does so itself for new shapes. Throws Error(device)
  // if cuDNN has none for them, or wants a larger workspace. Follows no pointer.
  virtual void plan(const AttentionArguments<bf16>& args) = 0;
  // As attention_forward(), where queries and keys are of the same tokens. Issued on a stream (a
  // cudaStream_t).
  virtual void forward(const AttentionArguments<bf16>& args, void* workspace, void* stream) = 0;

  // The number of shapes that it has plans for.
  virtual size_t known() const = 0;
  // Drops all plans. No work that they issued, and no recording of it, may run afterwards.
  virtual void forget() = 0;
};

// Makes attention for the GPU that the calling thread has set, of this level ("sm_90"), with a
// workspace of `workspace_bytes`. If `described` is not empty, it is for the GPU described there,
// in cuDNN's own form, and can only plan.
std::unique_ptr<CudnnAttention> make_cudnn_attention(const CudnnLibrary& library,
                                                     const std::string& level,
                                                     int64_t workspace_bytes,
                                                     const std::string& described = "");

}  // namespace jackscrew::cuda
