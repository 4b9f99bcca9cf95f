// cuDNN on the CPU, in place of src/kernels/cuda/cudnn_attention.cc: our own attention, and what
// the library keeps for every shape that it meets.
#include "kernels/cuda/cudnn_attention.h"

#include <set>
#include <tuple>

#include "base/error.h"
#include "tests/support/cuda_emulation/machine.h"

namespace jackscrew::cuda {

namespace {

using cuda_emulation::machine;

class Emulated : public CudnnAttention {
 public:
  void plan(const AttentionArguments<bf16>& args) override {
    if (args.cu_seqlens_q != args.cu_seqlens_k) fail(ErrorKind::device, "a KV cache for cuDNN");
    known_.emplace(args.sequences, args.tokens_q);
    machine().cudnn_shapes = known_.size();
  }
  void forward(const AttentionArguments<bf16>& args, void*, void* stream) override {
    plan(args);
    Attention<bf16> own;
    static_cast<AttentionArguments<bf16>&>(own) = args;
    ++machine().cudnn_calls;
    if (attention_forward(own, stream) != 0) fail(ErrorKind::device, "cuDNN: attention failed");
  }
  size_t known() const override { return known_.size(); }
  void forget() override { known_.clear(); }

 private:
  std::set<std::tuple<int64_t, int64_t>> known_;
};

}  // namespace

const CudnnLibrary& open_cudnn(const std::vector<fs::path>&) {
  static CudnnLibrary library;
  library = {"libcudnn.so.9", machine().cudnn};
  if (library.version == 0) throw Error(ErrorKind::device, "cuDNN 9 is wanted, none is found", "-");
  return library;
}

std::unique_ptr<CudnnAttention> make_cudnn_attention(const CudnnLibrary&, const std::string&,
                                                     int64_t, const std::string&) {
  return std::make_unique<Emulated>();
}

}  // namespace jackscrew::cuda
