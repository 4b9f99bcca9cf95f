// Weights as AutoGPTQ and GPTQModel, and as AutoAWQ write them. For a layer X of `in` columns and
// `out` rows, codes of b bits and groups of g columns:
//   GPTQ  X.qweight  i32 [in b / 32, out]        codes along the columns, a little-endian stream
//         X.qzeros   i32 [in / g, out b / 32]    zeros along the rows, stored minus one; unchanged
//                                                with checkpoint_format (or format) gptq_v2
//         X.scales   f16 [in / g, out]
//         X.g_idx    i32 [in]                    the group of each column; required with desc_act
//   AWQ   X.qweight  i32 [in, out / 8]           eight rows in a word, in the order 0 2 4 6 1 3 5 7
//         X.qzeros   i32 [in / g, out / 8]       packed likewise
//         X.scales   f16 [in / g, out]
// Scales may also be BF16 or F32: values are then rounded to that type.
#pragma once

#include "formats/quantised_layout.h"

namespace jackscrew {

QuantisedLayout gptq_layout();
QuantisedLayout awq_layout();

}  // namespace jackscrew
