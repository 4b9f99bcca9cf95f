// Attention on GPUs: FlashAttention-2 (Dao 2023), in f32 (attention.cu) or on tensor cores
// (attention_bf16.cu), as AttentionArguments::bf16_operands says; of a single query by a kernel of
// its own (attention_single.cu).
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"

namespace jackscrew::cuda {

// The largest head whose sums fit into a block's registers.
inline constexpr int64_t kAttentionMaxHeadDim = 256;

template <class Element>
struct Attention : AttentionArguments<Element> {
  float* delta = nullptr;  // f32 [num_heads, tokens_q], scratch of backward: sums of dout * out
};

// Bytes of shared memory that a block of the backward pass takes, the most of all kernels.
int64_t attention_shared_bytes(int64_t head_dim, bool bf16_operands);

// Issue the work on a stream (a cudaStream_t); return a cudaError_t. Element: float, or bf16 with
// bf16_operands.
template <class Element>
int attention_forward(const Attention<Element>& args, void* stream);
template <class Element>
int attention_backward(const Attention<Element>& args, void* stream);

}  // namespace jackscrew::cuda
