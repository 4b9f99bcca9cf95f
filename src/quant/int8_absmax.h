// The storage format int8_absmax: signed bytes with the largest magnitude (absmax) of each row,
// as bitsandbytes keeps the weights of LLM.int8. Read only: the format to encode in is int8_row.
//   codes i8 [rows, cols], absmax f32 [rows]
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& int8_absmax_format();

}  // namespace jackscrew
