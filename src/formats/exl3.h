// Weights as ExLlamaV3 keeps them. For a layer X of `in` columns and `out` rows, both multiples of
// 128, there are
//   X.trellis  i16 [in / 16, out / 16, 16 * bits]  numbers of 1 to 8 bits
//   X.suh      f16 [in], X.svh f16 [out]           scales of columns and rows
//   X.su, X.sv i16 [in / 16], [out / 16]           in older files in their place: signs, a bit that
//                                                  is set being -1, the lowest first
//   X.mcg, X.mul1                                  whether there is one says how numbers are made
// The storage formats of quant/exl3.h have the same parts. What quantization_config.json says of
// single tensors the tensors say themselves.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

QuantisedLayout exl3_layout();

}  // namespace jackscrew
