// Weights that bitsandbytes quantised to NF4, as Hugging Face's safetensors files hold them. For a
// weight X there are
//   X                                    u8 [ceil(elements / 2), 1], packed codes
//   X.absmax                             f32 [blocks], or u8 with double quantisation
//   X.quant_map                          f32 [16], the numbers of the codes
//   X.nested_absmax, X.nested_quant_map  f32 [ceil(blocks / 256)], f32 [256]; double quantisation
//   X.quant_state.bitsandbytes__nf4      u8, JSON: block sizes, shape, offset ...
// The storage formats nf4 and nf4_double have the same codes in the same order.
#pragma once

#include <array>
#include <functional>

#include "formats/safetensors.h"
#include "quant/format.h"

namespace jackscrew {

// Of the tensor that says how X is to be read: X's name and this.
inline constexpr std::string_view kNf4StateSuffix = ".quant_state.bitsandbytes__nf4";
// The other tensors that belong to X: X's name and one of these.
inline constexpr std::array<std::string_view, 4> kNf4PartSuffixes = {
    ".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map"};

// Puts the weight `name` together; `find` gives the tensor of a name, or null. `offset` receives
// what of the storage no tensor holds, and must live as long as the result. Error(model) names what
// is missing, damaged or different: other block sizes than 64 and 256, other numbers for the codes.
StoredTensor read_nf4(const std::string& name,
                      const std::function<const SafetensorsEntry*(const std::string&)>& find,
                      std::array<uint8_t, 4>& offset);

struct TensorBytes {
  SafetensorsSpec spec;
  std::vector<uint8_t> bytes;
};

// The tensors of a weight that is stored as nf4 or nf4_double. `storage` is in host memory; `dtype`
// is what bitsandbytes is to decode it to: "bfloat16", "float16" or "float32".
std::vector<TensorBytes> nf4_tensors(const std::string& name, const Format& format,
                                     const Storage& storage, const std::string& dtype);

}  // namespace jackscrew
