// Weights in floats of eight bits. For a layer X of `in` columns and `out` rows:
//   X.weight            F8_E4M3 [out, in]
//   X.weight_scale      F16, BF16 or F32 (float-quantized of compressed-tensors): one number, [out]
//                       or [out, 1], [out, groups], or [rows of blocks, columns of blocks] with
//                       `block_structure` in config.json
//   X.weight_scale_inv  the same (quant_method fp8 of Hugging Face: DeepSeek, Qwen, Ministral ...),
//                       blocks being `weight_block_size`
// A number is multiplied by its scale, whatever the scale is called. What files say about
// activations is not read: they are not rounded here.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

// Whether the weight of a layer is kept so.
bool is_fp8(const LayerTensors& tensors);

// The weight whose scales are in the tensor X`scales`. `block`: rows and columns of a block by the
// configuration; empty: it says nothing. Throws Error(model) naming the tensor that is missing or
// does not fit, and for scales whose values are not finite.
StoredTensor read_fp8(const LayerTensors& tensors, std::string_view scales,
                      const std::vector<int64_t>& block);

QuantisedLayout fp8_layout();

}  // namespace jackscrew
