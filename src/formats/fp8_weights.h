// Weights in 8-bit floating point. For a layer X of `in` columns and `out` rows:
//   X.weight            F8_E4M3 [out, in]
//   X.weight_scale      F16, BF16 or F32 (float-quantized of compressed-tensors): one number, [out]
//                       or [out, 1], [out, groups], or [rows of blocks, columns of blocks] with
//                       `block_structure` in config.json
//   X.weight_scale_inv  the same (quant_method fp8 of Hugging Face: DeepSeek, Qwen, Ministral ...),
//                       with blocks of `weight_block_size`
// Numbers are multiplied by their scale under either name. Settings for activations are not read,
// as activations are not rounded here.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

// Whether the weight of a layer is stored like this.
bool is_fp8(const LayerTensors& tensors);

// Reads the weight whose scales are in the tensor with the suffix `scales`. `block`: rows and
// columns of a block according to the configuration; empty: not given. `group_size`: columns of a
// group within a row according to it; 0: not given. Throws Error(model) naming the tensor that is
// missing or does not fit, and for scales with which values are not finite.
StoredTensor read_fp8(const LayerTensors& tensors, std::string_view scales,
                      const std::vector<int64_t>& block, int64_t group_size);

QuantisedLayout fp8_layout();

}  // namespace jackscrew
