// Weights that bitsandbytes quantised, as Hugging Face's safetensors files hold them. For a weight
// X in NF4 or FP4 there are
//   X                                    u8 [ceil(elements / 2), 1], packed codes
//   X.absmax                             f32 [blocks], or u8 with double quantisation
//   X.quant_map                          f32 [16], the numbers of the codes
//   X.nested_absmax, X.nested_quant_map  f32 [ceil(blocks / 256)], f32 [256]; double quantisation
//   X.quant_state.bitsandbytes__nf4      u8, JSON: block sizes, shape, offset ... (or __fp4)
// The storage formats nf4, nf4_double, fp4 and fp4_double have the same codes in the same order.
// For a layer X in 8 bits (LLM.int8: Dettmers et al., arXiv 2208.07339) there are
//   X.weight         i8 [out, in]
//   X.SCB            f32 [out], the largest magnitude of each row
//   X.weight_format  u8, 0: in this order; optional
// The outlier columns of activations, which LLM.int8 multiplies in f16, are no part of the weight.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "formats/quantised_layout.h"
#include "quant/format.h"

namespace jackscrew {

// The layouts of such weights. Block sizes other than 64 (nested: 256) and other numbers for the
// codes are refused.
QuantisedLayout bitsandbytes_nf4_layout();
QuantisedLayout bitsandbytes_fp4_layout();
QuantisedLayout bitsandbytes_int8_layout();

// The file's tensors for a weight that is stored as nf4 or nf4_double. `storage` is in host memory;
// `dtype` is the type to which bitsandbytes shall decode it: "bfloat16", "float16" or "float32".
std::vector<TensorBytes> nf4_tensors(const std::string& name, const Format& format,
                                     const Storage& storage, const std::string& dtype);

// The quantization_config of a model whose linear layers are such weights, but for those of the
// modules `plain`. `compute_dtype` is the type in which bitsandbytes shall multiply.
nlohmann::json nf4_quantization_config(const std::string& compute_dtype,
                                       const std::vector<std::string>& plain);

}  // namespace jackscrew
