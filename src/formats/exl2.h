// Weights as ExLlamaV2 writes them (EXL2): codes of 2 to 6 and 8 bits, mixed within a matrix. For a
// layer X of `in` columns and `out` rows, padding included:
//   X.q_weight     i32 [words, out]       for each group and row a little-endian stream of codes,
//                                         whose words stand `out` apart
//   X.q_groups     i16 [2 groups]         bits of a group, and its first line of q_weight
//   X.q_invperm    i32 [in]               each column's place in the stored order
//   X.q_scale      i32 [groups, out / 8]  4-bit codes of scales, the first row in the lowest bits
//   X.q_scale_max  f16 [groups]
// Value: (code - 2^(bits - 1)) * (scale code + 1)² * (scale_max / 256), every product in f16.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

inline constexpr int64_t kExl2PaddedRows = 32;  // rows are padded to a multiple of so many

QuantisedLayout exl2_layout();

}  // namespace jackscrew
