// cuDNN's attention (attention=cudnn), called by its own frontend: the forward pass alone, since
// its backward pass is deterministic on few GPUs only, and takes hundreds of MB there
// (docs/performance.md).
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

// Found as a SharedLibrary is, once. Throws Error(device) as that does, where the library is older
// than this needs, and where the program was built without cuDNN's headers.
const CudnnLibrary& open_cudnn(const std::vector<fs::path>& environments);

class CudnnAttention {
 public:
  CudnnAttention() = default;
  virtual ~CudnnAttention() = default;
  CudnnAttention(const CudnnAttention&) = delete;
  CudnnAttention& operator=(const CudnnAttention&) = delete;

  // What forward() does first for shapes that it has not met. Throws Error(device) where cuDNN has
  // nothing for them, or wants a larger workspace. Looks at no address.
  virtual void plan(const AttentionArguments<bf16>& args) = 0;
  // As attention_forward(), where queries and keys are of the same tokens. Issued on a stream (a
  // cudaStream_t).
  virtual void forward(const AttentionArguments<bf16>& args, void* workspace, void* stream) = 0;

  // How many shapes it has plans for; and to let go of them, once no work that they issued, and no
  // recording of it, will run again.
  virtual size_t known() const = 0;
  virtual void forget() = 0;
};

// For the GPU that the calling thread has set, of this level ("sm_90"), with a workspace of so many
// bytes; or, where `described` is not empty, for one that is only described, as cuDNN writes it,
// and on which nothing can be run.
std::unique_ptr<CudnnAttention> make_cudnn_attention(const CudnnLibrary& library,
                                                     const std::string& level,
                                                     int64_t workspace_bytes,
                                                     const std::string& described = "");

}  // namespace jackscrew::cuda
