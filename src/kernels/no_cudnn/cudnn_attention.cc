// A build without cuDNN's headers.
#include "kernels/cuda/cudnn_attention.h"

#include "base/error.h"

namespace jackscrew::cuda {

namespace {

[[noreturn]] void refuse() {
  throw Error(ErrorKind::device, "this program was built without cuDNN's headers",
              "build it after script/setup --cuda, or leave attention=own");
}

}  // namespace

const CudnnLibrary& open_cudnn(const std::vector<fs::path>&) {
  refuse();
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(const CudnnLibrary&, const std::string&,
                                                     int64_t, const std::string&) {
  refuse();
}

}  // namespace jackscrew::cuda
