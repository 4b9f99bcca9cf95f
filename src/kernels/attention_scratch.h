// The scratch that attention takes from its arena, in one place so that CpuOps and PlanOps agree.
#pragma once

#include "kernels/cpu/attention.h"
#include "kernels/ops.h"

namespace jackscrew {

struct AttentionScratch {
  Tensor packed;      // f32 [num_kv_heads, packed elements]
  Tensor per_thread;  // f32 [threads, elements]
  Tensor dkv_heads;   // backward: f32 [2 * num_heads, tokens, padded head_dim]
};

inline AttentionScratch attention_forward_scratch(const AttentionShape& shape, int64_t tokens_k,
                                                  int threads, Arena& arena) {
  return {arena.tensor(DType::f32,
                       {shape.num_kv_heads, attention_forward_packed(tokens_k, shape.head_dim)}),
          arena.tensor(DType::f32, {threads, attention_forward_thread(shape.head_dim)}), Tensor()};
}

// A sequence may be as long as all tokens together.
inline AttentionScratch attention_backward_scratch(const AttentionShape& shape, int64_t tokens,
                                                   int threads, Arena& arena) {
  return {arena.tensor(DType::f32,
                       {shape.num_kv_heads, attention_backward_packed(tokens, shape.head_dim)}),
          arena.tensor(DType::f32, {threads, attention_backward_thread(tokens, shape.head_dim)}),
          arena.tensor(DType::f32,
                       {2 * shape.num_heads, tokens, attention_padded_head_dim(shape.head_dim)})};
}

}  // namespace jackscrew
