// The arguments of attention kernels on every device: pointers and strides in place of tensors.
#pragma once

#include <cstdint>

namespace jackscrew {

// Element: float or bf16. All other pointers are to f32 unless said; strides are elements from row
// to row. See Ops::attention_forward and AttentionShape.
template <class Element>
struct AttentionArguments {
  const int32_t* cu_seqlens_q = nullptr;  // [sequences + 1]
  const int32_t* cu_seqlens_k = nullptr;  // [sequences + 1]
  int64_t sequences = 0, num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t tokens_q = 0, tokens_k = 0;
  float scale = 1.0f;
  int64_t window = 0;
  bool bf16_operands = false;
  const Element* q = nullptr;  // [tokens_q, num_heads * head_dim]
  const Element* k = nullptr;  // [tokens_k, num_kv_heads * head_dim]
  const Element* v = nullptr;
  Element* out = nullptr;         // [tokens_q, num_heads * head_dim]; read by backward
  float* lse = nullptr;           // [num_heads, tokens_q]; read by backward
  const Element* dout = nullptr;  // backward: like out
  float* dq = nullptr;            // backward: [tokens_q, num_heads * head_dim]
  float* dk = nullptr;            // backward: [tokens_k, num_kv_heads * head_dim]
  float* dv = nullptr;
  int64_t q_stride = 0, k_stride = 0, v_stride = 0, out_stride = 0;
  int64_t dout_stride = 0, dq_stride = 0, dk_stride = 0, dv_stride = 0;
};

}  // namespace jackscrew
