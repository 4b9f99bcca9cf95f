// Attention of a single query (attention_single.cu), as of a token that is generated over a cache.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention.h"

namespace jackscrew::cuda {

// As attention_forward(), for tokens_q == 1. All products are f32, whatever bf16_operands says.
template <class Element>
int attention_forward_single(const Attention<Element>& args, void* stream);

}  // namespace jackscrew::cuda
