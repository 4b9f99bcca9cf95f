// Attention on GPUs (attention.cu): FlashAttention-2 (Dao 2023) in f32.
#pragma once

#include <cstdint>

namespace jackscrew::cuda {

// A block of threads works on so many queries or keys, against so many of the other kind at a time.
inline constexpr int kAttentionTile = 32;
// Eight threads share a row; the largest head has 32 elements for each of them.
inline constexpr int64_t kAttentionMaxHeadDim = 256;

// See Ops::attention_forward. Rows of matrices lie `stride` elements apart.
struct Attention {
  const int32_t* cu_q;  // [sequences + 1]
  const int32_t* cu_k;
  int64_t sequences, num_heads, num_kv_heads, head_dim, tokens_q, tokens_k;
  float scale;
  int64_t window;  // see AttentionShape
  const float* q;
  const float* k;
  const float* v;
  const float* dout;  // backward only, like those below
  float* out;         // written by forward, read by backward
  float* lse;         // [num_heads, tokens_q], the same
  float* dq;
  float* dk;
  float* dv;
  float* delta;  // [num_heads, tokens_q], scratch: sums of dout * out
  int64_t q_stride, k_stride, v_stride, out_stride, dout_stride, dq_stride, dk_stride, dv_stride;
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
