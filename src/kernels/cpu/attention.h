// CPU attention, compiled once per instruction set (attention.isa.cc); see Ops for the contract.
// The code here is single-threaded: CpuOps cuts the work into tasks and runs them on its pool.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"

namespace jackscrew {

// Query rows and key columns of one tile of scores. 64 x 128 floats of scores, two operand tiles of
// head_dim 64 and the accumulator come to 112 KiB: they stay in L2 with room for the streamed keys,
// and the products are long enough (64..128 terms) to keep loading and storing accumulators under
// 10 %.
inline constexpr int64_t kAttentionQueryBlock = 64;
inline constexpr int64_t kAttentionKeyBlock = 128;

// Widest vector in floats; packed rows are padded to it at every instruction-set level.
inline constexpr int64_t kAttentionPad = 16;

struct CpuAttention : AttentionArguments<float> {
  // Scratch, f32.
  float* packed =
      nullptr;  // [num_kv_heads, packed_elements]: keys and values as the tiles want them
  float* dkv_heads = nullptr;  // backward: [2, num_heads, tokens_k, padded head_dim]
};

// Elements of scratch; the plan device asks for the same.
int64_t attention_padded_head_dim(int64_t head_dim);
int64_t attention_forward_packed(int64_t tokens_k, int64_t head_dim);   // per kv head
int64_t attention_backward_packed(int64_t tokens_k, int64_t head_dim);  // per kv head
int64_t attention_forward_thread(int64_t head_dim);                     // per thread
int64_t attention_backward_thread(int64_t longest, int64_t head_dim);   // per thread

struct AttentionKernels {
  // Lays out the keys and values of one kv head; before any task that reads them.
  void (*pack_forward)(const CpuAttention& args, int64_t kv_head);
  void (*pack_backward)(const CpuAttention& args, int64_t kv_head);
  // One block of queries of one head of one sequence.
  void (*forward)(const CpuAttention& args, int64_t sequence, int64_t head, int64_t block,
                  float* thread_scratch);
  // All query heads of one kv head, for the only query of a call; reads keys and values where they
  // lie, not packed. head_dim is a multiple of kAttentionPad.
  void (*forward_single)(const CpuAttention& args, int64_t kv_head, float* thread_scratch);
  // One head of one sequence: writes dq and this head's share of dk and dv into dkv_heads.
  void (*backward)(const CpuAttention& args, int64_t sequence, int64_t head, float* thread_scratch);
  // Sums the shares of the heads of a group, in order, into rows [begin, end) of dk and dv.
  void (*reduce_heads)(const CpuAttention& args, int64_t begin, int64_t end);
};

namespace v3 {
extern const AttentionKernels kAttentionKernels;
}
namespace v4 {
extern const AttentionKernels kAttentionKernels;
}

}  // namespace jackscrew
