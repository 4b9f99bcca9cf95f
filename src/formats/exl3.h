// Weights as ExLlamaV3 keeps them. For a layer X of `in` columns and `out` rows, both multiples of
// 128, there are
//   X.trellis  i16 [in / 16, out / 16, 16 * bits]  numbers of 1 to 8 bits
//   X.suh      f16 [in], X.svh f16 [out]           scales of columns and rows
//   X.su, X.sv i16 [in / 16], [out / 16]           in older files instead of these: signs, the
//                                                  lowest bit first; a set bit is -1
//   X.mcg, X.mul1                                  if one is present, it selects the codebook
// The storage formats of quant/exl3.h have the same parts. quantization_config.json is not needed:
// what it says of single tensors follows from the tensors themselves.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

QuantisedLayout exl3_layout();

}  // namespace jackscrew
