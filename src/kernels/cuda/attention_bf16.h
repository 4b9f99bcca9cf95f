// Attention on tensor cores (attention_bf16.cu): FlashAttention-2 (Dao 2023) with operands rounded
// to bf16.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace jackscrew::cuda {

// Bytes of shared memory that a block of any of its kernels takes at most.
int64_t attention_shared_bytes_bf16(int64_t head_dim);

// As attention_forward(), and the part of attention_backward() after the sums of dout * out.
template <class Element>
int attention_forward_bf16(const Attention<Element>& args, void* stream);
template <class Element>
int attention_gradients_bf16(const Attention<Element>& args, void* stream);

}  // namespace jackscrew::cuda
