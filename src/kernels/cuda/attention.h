// Attention on GPUs (attention.cu): FlashAttention-2 (Dao 2023) in f32.
#pragma once

#include <cstdint>

#include "kernels/attention_arguments.h"

namespace jackscrew::cuda {

// A block of threads works on so many queries or keys, against so many of the other kind at a time.
inline constexpr int kAttentionTile = 32;
// Eight threads share a row; the largest head has 32 elements for each of them.
inline constexpr int64_t kAttentionMaxHeadDim = 256;

struct Attention : AttentionArguments {
  float* delta = nullptr;  // f32 [num_heads, tokens_q], scratch of backward: sums of dout * out
};

// Shared memory that a block of the backward pass takes, the most of all.
inline int64_t attention_shared_bytes(int64_t head_dim) {
  const int64_t tile = kAttentionTile * (head_dim + 1);
  const int64_t scores = kAttentionTile * (kAttentionTile + 1);
  return (4 * tile + 2 * scores) * static_cast<int64_t>(sizeof(float));
}

// Issue the work on a stream (a cudaStream_t); return a cudaError_t.
int attention_forward(const Attention& args, void* stream);
int attention_backward(const Attention& args, void* stream);

}  // namespace jackscrew::cuda
