// Weights as compressed-tensors keeps them (llm-compressor, vLLM). For a layer X of `in` columns
// and `out` rows, with scales of F16, BF16 or F32, to whose type values are rounded:
//   pack-quantized
//     X.weight_packed      i32 [out, words]     codes of 2 to 6 or 8 bits along a row: a
//                                               little-endian stream, or by older writers whole
//                                               codes in each word, 32/bits of them
//     X.weight_scale       [out, groups]        groups of equal size; 1: the whole row
//     X.weight_zero_point  i32 [words, groups]  codes along the rows, packed alike; absent: the
//                                               middle code
//     X.weight_shape       i64 [2]
//     X.weight_g_idx       i32 [in]             the group of each column (actorder); optional
//   int-quantized
//     X.weight             i8 [out, in]
//     X.weight_scale       [out, groups] or [1]
//     X.weight_zero_point  i8 of the same shape; optional
//   float-quantized
//     X.weight, X.weight_scale                  as formats/fp8_weights.h has them
// The tensors alone determine all of this, except for the blocks of float-quantized and, with few
// columns, the bits.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

QuantisedLayout pack_quantized_layout();
QuantisedLayout byte_quantized_layout();  // int-quantized and float-quantized

}  // namespace jackscrew
