// The storage formats nf4 and nf4_double: four bits from a book of 16 numbers that are spread as
// normal numbers are (QLoRA: Dettmers et al., arXiv 2305.14314), laid out as bitsandbytes does.
//   nf4         codes u8 [ceil(elements / 2)], absmax f32 [blocks of 64]
//   nf4_double  codes u8 [ceil(elements / 2)], absmax codes u8 [blocks of 64],
//               nested absmax f32 [ceil(blocks / 256)], offset f32 [1]
#pragma once

#include <span>

#include "quant/format.h"

namespace jackscrew {

const Format& nf4_format();
const Format& nf4_double_format();

std::span<const float> nf4_values();  // [16], ascending

}  // namespace jackscrew
