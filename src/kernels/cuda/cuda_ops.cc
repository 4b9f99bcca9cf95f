#include "kernels/cuda/cuda_ops.h"

#include <cuda_runtime_api.h>

#include <optional>

#include "base/error.h"
#include "base/text.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/batches.h"
#include "kernels/cuda/check.h"
#include "kernels/cuda/gemm.h"
#include "kernels/cuda/gemm_int8.h"
#include "kernels/cuda/marks.h"
#include "kernels/cuda/replay.h"
#include "kernels/cuda/transfer.h"
#include "kernels/op_arguments.h"
#include "kernels/plan/plan_ops.h"

namespace jackscrew::cuda {

namespace {

// NVIDIA's recommendation for Hopper; older GPUs use less of it.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int32_t kInt8Limit = 127;
// A head of 152k words multiplied 1024 rows at 75 to 90 % of an H100's speed, forward and dx. Its
// gradient, in f32, took 1.9 times as long as they, for reading and writing 8 bytes beside two
// operations a row: at 2048 rows half of that is left.
constexpr int64_t kProductRows = 1024;
constexpr int64_t kGradientRows = 2048;
// Holds any weight of an 8B model whole: every further piece of a contraction reads and writes all
// of dx once more, in f32, which at 16384 x 4096 takes a sixth of the product's time.
constexpr int64_t kPanelBytes = int64_t{128} << 20;

// Each takes some 2 MB of the host's memory, and a second to make.
constexpr size_t kMostCudnnShapes = 128;

OwnedTensor make_workspace(Memory& memory) {
  return {memory, Purpose::workspace, DType::u8, {kWorkspaceBytes}};
}

Tensor delta_scratch(const AttentionShape& shape, int64_t tokens, Arena& arena) {
  return arena.tensor(DType::f32, {shape.num_heads, tokens});
}

class Stream {
 public:
  Stream() { check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream"); }
  ~Stream() {
    cudaStreamSynchronize(stream_);
    cudaStreamDestroy(stream_);
  }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

 private:
  cudaStream_t stream_ = nullptr;
};

class CudaOps : public Ops {
 public:
  CudaOps(const GpuLibraries& libraries, const GpuInfo& gpu, Memory& memory, int threads,
          IsaLevel isa)
      : Ops(threads, isa),
        gpu_(gpu),
        workspace_(make_workspace(memory)),
        gemm_(*libraries.cublaslt, workspace_.view().raw(), static_cast<size_t>(kWorkspaceBytes)) {
    if (libraries.cudnn != nullptr) {
      cudnn_ = make_cudnn_attention(*libraries.cudnn, gpu.level, kWorkspaceBytes);
    }
  }

  std::string level() const override { return gpu_.level; }
  bool plans_only() const override { return false; }
  bool has_bf16() const override { return true; }
  bool multiplies_tokens_as_stored() const override { return false; }
  int64_t panel_bytes() const override { return kPanelBytes; }
  int64_t product_rows() const override { return kProductRows; }
  int64_t gradient_rows() const override { return kGradientRows; }

  void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
            const Tensor& c, Accumulate accumulate) override {
    multiply(a, transpose_a, b, transpose_b, c,
             {.addend = accumulate == Accumulate::yes ? &c : nullptr});
  }
  void gemm_onto(const Tensor& addend, const Tensor& a, Transpose transpose_a, const Tensor& b,
                 Transpose transpose_b, const Tensor& c) override {
    if (!Gemm::lies_as(c, addend)) {
      return Ops::gemm_onto(addend, a, transpose_a, b, transpose_b, c);
    }
    check_copy(c, addend);
    multiply(a, transpose_a, b, transpose_b, c, {.addend = &addend});
  }
  void gemm_scaled(float scale, const Tensor& a, Transpose transpose_a, const Tensor& b,
                   Transpose transpose_b, const Tensor& c, Arena&) override {
    multiply(a, transpose_a, b, transpose_b, c, {.scale = scale});
  }

  void gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c,
                 Accumulate accumulate, Arena&) override {
    const bool tb = transpose_b == Transpose::yes;
    const int64_t m = c.rows();
    const int64_t n = c.cols();
    const int64_t k = a.codes.cols();
    if (m == 0 || n == 0) return;
    check_gemm_int8(a, b, transpose_b, c);
    check(cuda::gemm_int8({.a = a.codes.data<int8_t>(),
                           .a_scales = a.scales.data<float>(),
                           .b = b.codes.data<int8_t>(),
                           .b_scales = b.scales.empty() ? nullptr : b.scales.data<float>(),
                           .c = c.data<float>(),
                           .a_stride = a.codes.row_stride(),
                           .a_scales_stride = a.scales.row_stride(),
                           .b_stride = b.codes.row_stride(),
                           .c_stride = c.row_stride(),
                           .m = m,
                           .n = n,
                           .k = k,
                           .transpose_b = tb,
                           .accumulate = accumulate == Accumulate::yes},
                          stream()),
          "a product of bytes");
  }
  int32_t int8_limit() const override { return kInt8Limit; }

  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& out, const Tensor& lse, Arena&) override {
    // cuDNN is used only where queries and keys are of the same tokens, not with a KV cache.
    if (cudnn_ && q.dtype() == DType::bf16 &&
        shape.cu_seqlens_q.raw() == shape.cu_seqlens_k.raw()) {
      cudnn_forward(shape, q, k, v, out, lse);
      return;
    }
    with_activation(q.dtype(), [&]<class Element>(Element) {
      check(cuda::attention_forward(arguments<Element>(shape, q, k, v, out, lse), stream()),
            "attention");
    });
  }

  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                          Arena& scratch) override {
    const Arena::Frame frame(scratch);
    const Tensor delta = delta_scratch(shape, q.rows(), scratch);
    with_activation(q.dtype(), [&]<class Element>(Element) {
      Attention<Element> args = arguments<Element>(shape, q, k, v, out, lse);
      args.delta = delta.data<float>();
      set_attention_gradients(args, shape, dout, dq, dk, dv);
      check(cuda::attention_backward(args, stream()), "attention's gradients");
    });
  }
  bool has_bf16_attention() const override { return true; }

  void copy(const Tensor& to, const Tensor& from) override { transfer_.copy(to, from, stream()); }
  void finish() override {
    for (const cudaStream_t stream : {stream(), async_stream_.get()}) {
      check(cudaStreamSynchronize(stream), "waiting for the GPU");
    }
  }

  bool has_async_copy() const override { return true; }
  void copy_async(const Tensor& to, const Tensor& from) override {
    if (!async_transfer_) async_transfer_.emplace();
    async_transfer_->copy(to, from, async_stream_.get());
  }

  void zero(const Tensor& tensor) override {
    if (tensor.size() == 0) return;
    // Not as one long row by the call below: a pitch has to be less than 2 GiB.
    if (tensor.contiguous()) {
      check(cudaMemsetAsync(tensor.raw(), 0, static_cast<size_t>(tensor.bytes()), stream()),
            "clearing memory");
      return;
    }
    const int64_t size = dtype_size(tensor.dtype());
    check(cudaMemset2DAsync(tensor.raw(), static_cast<size_t>(tensor.row_stride() * size), 0,
                            static_cast<size_t>(tensor.cols() * size),
                            static_cast<size_t>(tensor.rows()), stream()),
          "clearing memory");
  }

  void repeat(const std::vector<int64_t>& key, const std::function<void()>& body) override {
    replay_.run(key, body, stream());
  }
  void forget_repeats() override {
    finish();
    replay_.forget();
  }
  RepeatCounts repeat_counts() const override { return replay_.counts(); }

  void in_batches(const std::function<void()>& body) override { batches_.run(body, stream_.get()); }
  void begin_part() override { batches_.begin_part(); }

  bool has_marks() const override { return true; }
  void mark() override { marks_.add(stream()); }
  std::vector<double> seconds_between_marks() override { return marks_.take(); }

 protected:
  void launch_rows(const RowKernel& kernel, const void* args, int64_t rows) override {
    if (batches_.add(kernel, args, rows, stream_.get())) return;
    check(kernel.cuda(args, rows, stream_.get()), kernel.name);
  }

 private:
  void multiply(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
                const Tensor& c, const Gemm::With& with) {
    check_gemm(a, transpose_a, b, transpose_b, c);
    if (c.size() == 0) return;
    if ((transpose_a == Transpose::yes ? a.rows() : a.cols()) > 0) {
      gemm_.run(a, transpose_a, b, transpose_b, c, with, stream());
    } else if (with.addend == nullptr) {
      zero(c);
    } else if (with.addend->raw() != c.raw()) {
      copy(c, *with.addend);
    }
  }

  // For what is to be issued now, behind all launches that wait.
  cudaStream_t stream() {
    batches_.issue(stream_.get());
    return stream_.get();
  }

  void cudnn_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k, const Tensor& v,
                     const Tensor& out, const Tensor& lse) {
    if (q.rows() == 0) return;
    const Attention<bf16> args = arguments<bf16>(shape, q, k, v, out, lse);
    forget_shapes();
    cudnn_->forward(args, workspace_.view().raw(), stream());
  }

  // Drops cuDNN's plans once they are many: it makes one for each shape, and micro-batches may
  // never be alike.
  void forget_shapes() {
    if (cudnn_->known() < kMostCudnnShapes) return;
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream(), &status), "asking a stream whether it records");
    if (status != cudaStreamCaptureStatusNone) return;
    forget_repeats();
    cudnn_->forget();
  }

  template <class Element>
  Attention<Element> arguments(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                               const Tensor& v, const Tensor& out, const Tensor& lse) const {
    const int64_t wanted = attention_shared_bytes(shape.head_dim, shape.operands == DType::bf16);
    if (shape.head_dim > kAttentionMaxHeadDim || wanted > gpu_.shared_memory_bytes) {
      fail(ErrorKind::device,
           "attention with head_dim {} takes {} bytes of shared memory; this GPU ({}) has {}, and "
           "the program goes up to head_dim {}",
           shape.head_dim, wanted, gpu_.level, gpu_.shared_memory_bytes, kAttentionMaxHeadDim);
    }
    Attention<Element> args;
    set_attention(args, shape, q, k, v, out, lse);
    return args;
  }

  GpuInfo gpu_;
  OwnedTensor workspace_;  // u8 [kWorkspaceBytes], the libraries'
  Gemm gemm_;
  std::unique_ptr<CudnnAttention> cudnn_;  // null: attention is ours
  Transfer transfer_;
  std::optional<Transfer> async_transfer_;  // buffers of its own: none waits for the other stream
  Batches batches_;
  Replay replay_;
  Marks marks_;
  Stream stream_, async_stream_;
};

// Takes from memory and arenas what CudaOps takes.
class CudaPlanOps : public PlanOps {
 public:
  CudaPlanOps(const GpuInfo& gpu, Memory& memory, int threads, IsaLevel isa)
      : PlanOps(threads, isa), gpu_(gpu), workspace_(make_workspace(memory)) {}

  std::string level() const override { return gpu_.level; }
  bool has_bf16() const override { return true; }
  bool multiplies_tokens_as_stored() const override { return false; }
  int64_t panel_bytes() const override { return kPanelBytes; }
  int64_t product_rows() const override { return kProductRows; }
  int64_t gradient_rows() const override { return kGradientRows; }
  bool has_bf16_attention() const override { return true; }
  bool has_async_copy() const override { return true; }
  int32_t int8_limit() const override { return kInt8Limit; }
  void gemm_scaled(float, const Tensor&, Transpose, const Tensor&, Transpose, const Tensor&,
                   Arena&) override {}
  void gemm_int8(const Int8Rows&, const Int8Rows&, Transpose, const Tensor&, Accumulate,
                 Arena&) override {}
  void attention_forward(const AttentionShape&, const Tensor&, const Tensor&, const Tensor&,
                         const Tensor&, const Tensor&, Arena&) override {}
  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor&,
                          const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                          const Tensor&, const Tensor&, Arena& scratch) override {
    const Arena::Frame frame(scratch);
    delta_scratch(shape, q.rows(), scratch);
  }

 private:
  GpuInfo gpu_;
  OwnedTensor workspace_;
};

}  // namespace

std::unique_ptr<Ops> make_cuda_ops(const GpuLibraries& libraries, const GpuInfo& gpu,
                                   Memory& memory, int threads, IsaLevel isa) {
  return std::make_unique<CudaOps>(libraries, gpu, memory, threads, isa);
}

std::unique_ptr<Ops> make_cuda_plan_ops(const GpuInfo& gpu, Memory& memory, int threads,
                                        IsaLevel isa) {
  return std::make_unique<CudaPlanOps>(gpu, memory, threads, isa);
}

}  // namespace jackscrew::cuda
