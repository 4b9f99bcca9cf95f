#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <cstring>
#include <tuple>
#include <vector>

#include "base/parallel.h"
#include "kernels/attention_scratch.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/gemm_int8.h"
#include "kernels/int8_scratch.h"
#include "kernels/op_arguments.h"

namespace jackscrew {

namespace {

// Tasks per thread when rows are shared out: enough to even out a thread that was held up, few
// enough that taking a task (about 0.1 us) does not show.
constexpr int64_t kChunksPerThread = 8;

struct AttentionTask {
  int64_t sequence, head, block, cost;
};

class CpuOps : public Ops {
 public:
  CpuOps(int threads, IsaLevel isa)
      : Ops(threads, isa),
        gemm_(threads, isa),
        attention_(isa == IsaLevel::v3 ? v3::kAttentionKernels : v4::kAttentionKernels) {}

  bool plans_only() const override { return false; }
  bool has_bf16() const override { return isa() >= IsaLevel::v4_bf16; }

  void gemm(const Tensor& a, Transpose transpose_a, const Tensor& b, Transpose transpose_b,
            const Tensor& c, Accumulate accumulate) override {
    gemm_.run(a, transpose_a, b, transpose_b, c, accumulate);
  }

  void gemm_int8(const Int8Rows& a, const Int8Rows& b, Transpose transpose_b, const Tensor& c,
                 Accumulate accumulate, Arena& scratch) override {
    cpu_gemm_int8(threads(), isa(), a, b, transpose_b, c, accumulate, scratch);
  }
  int32_t int8_limit() const override { return int8_code_limit(isa()); }

  void attention_forward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                         const Tensor& v, const Tensor& out, const Tensor& lse,
                         Arena& scratch) override {
    const Arena::Frame frame(scratch);
    const AttentionScratch buffers = attention_forward_scratch(shape, k.rows(), threads(), scratch);
    CpuAttention args;
    set_attention(args, shape, q, k, v, out, lse);
    // Those that there are, of a cache with room for more.
    args.tokens_k = std::min<int64_t>(args.tokens_k, args.cu_seqlens_k[shape.sequences]);
    // Packing keys for a single query, which has others in a cache, would take longer than
    // multiplying by them.
    if (args.tokens_q == 1 && args.tokens_k > 1 && shape.sequences == 1 &&
        shape.head_dim % kAttentionPad == 0) {
      parallel_for(threads(), shape.num_kv_heads, [&](int64_t kv_head, int thread) {
        auto* scratch_of_thread = buffers.per_thread.rows(thread, thread + 1).data<float>();
        attention_.forward_single(args, kv_head, scratch_of_thread);
      });
      return;
    }
    args.packed = buffers.packed.data<float>();
    parallel_for(threads(), shape.num_kv_heads,
                 [&](int64_t head, int) { attention_.pack_forward(args, head); });
    tasks_.clear();
    for (int64_t s = 0; s < shape.sequences; ++s) {
      const int64_t length = args.cu_seqlens_q[s + 1] - args.cu_seqlens_q[s];
      for (int64_t head = 0; head < shape.num_heads; ++head) {
        for (int64_t block = 0; block < ceil_div(length, kAttentionQueryBlock); ++block) {
          tasks_.push_back({s, head, block, block});
        }
      }
    }
    run_tasks(buffers.per_thread, [&](const AttentionTask& task, float* per_thread) {
      attention_.forward(args, task.sequence, task.head, task.block, per_thread);
    });
  }

  void attention_backward(const AttentionShape& shape, const Tensor& q, const Tensor& k,
                          const Tensor& v, const Tensor& out, const Tensor& lse, const Tensor& dout,
                          const Tensor& dq, const Tensor& dk, const Tensor& dv,
                          Arena& scratch) override {
    const Arena::Frame frame(scratch);
    const AttentionScratch buffers =
        attention_backward_scratch(shape, k.rows(), threads(), scratch);
    CpuAttention args;
    set_attention(args, shape, q, k, v, out, lse);
    args.packed = buffers.packed.data<float>();
    args.dkv_heads = buffers.dkv_heads.data<float>();
    set_attention_gradients(args, shape, dout, dq, dk, dv);
    parallel_for(threads(), shape.num_kv_heads,
                 [&](int64_t head, int) { attention_.pack_backward(args, head); });
    tasks_.clear();
    for (int64_t s = 0; s < shape.sequences; ++s) {
      const int64_t length = args.cu_seqlens_q[s + 1] - args.cu_seqlens_q[s];
      for (int64_t head = 0; head < shape.num_heads; ++head) tasks_.push_back({s, head, 0, length});
    }
    run_tasks(buffers.per_thread, [&](const AttentionTask& task, float* per_thread) {
      attention_.backward(args, task.sequence, task.head, per_thread);
    });
    run_chunks(args.tokens_k,
               [&](int64_t begin, int64_t end) { attention_.reduce_heads(args, begin, end); });
  }

  void copy(const Tensor& to, const Tensor& from) override {
    check_copy(to, from);
    const int64_t size = dtype_size(to.dtype());
    auto* target = static_cast<uint8_t*>(to.raw());
    const auto* source = static_cast<const uint8_t*>(from.raw());
    run_chunks(to.rows(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(target + r * to.row_stride() * size, source + r * from.row_stride() * size,
                    static_cast<size_t>(to.cols() * size));
      }
    });
  }

  void zero(const Tensor& tensor) override {
    const int64_t size = dtype_size(tensor.dtype());
    auto* data = static_cast<uint8_t*>(tensor.raw());
    run_chunks(tensor.rows(), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        std::memset(data + r * tensor.row_stride() * size, 0,
                    static_cast<size_t>(tensor.cols() * size));
      }
    });
  }

 protected:
  void launch_rows(const RowKernel& kernel, const void* args, int64_t rows) override {
    const CpuRowFunction function = isa() == IsaLevel::v3 ? kernel.x86_64_v3 : kernel.x86_64_v4;
    run_chunks(rows, [&](int64_t begin, int64_t end) { function(args, begin, end); });
  }

 private:
  template <class Body>
  void run_chunks(int64_t rows, const Body& body) {
    const int64_t chunks = std::min(rows, threads() * kChunksPerThread);
    parallel_for(threads(), chunks, [&](int64_t chunk, int) {
      body(rows * chunk / chunks, rows * (chunk + 1) / chunks);
    });
  }

  // The longest tasks first, so that the last ones to end are short.
  template <class Body>
  void run_tasks(const Tensor& per_thread, const Body& body) {
    std::sort(tasks_.begin(), tasks_.end(), [](const AttentionTask& a, const AttentionTask& b) {
      return std::tie(b.cost, a.sequence, a.head) < std::tie(a.cost, b.sequence, b.head);
    });
    auto* scratch = per_thread.data<float>();
    parallel_for(threads(), static_cast<int64_t>(tasks_.size()), [&](int64_t i, int thread) {
      body(tasks_[static_cast<size_t>(i)], scratch + thread * per_thread.cols());
    });
  }

  CpuGemm gemm_;
  const AttentionKernels& attention_;
  std::vector<AttentionTask> tasks_;
};

}  // namespace

std::unique_ptr<Ops> make_cpu_ops(int threads, IsaLevel isa) {
  return std::make_unique<CpuOps>(threads, isa);
}

}  // namespace jackscrew
