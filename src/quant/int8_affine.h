// The storage format int8_affine: unsigned bytes with an f32 scale and a zero point per group of
// 256 elements of the row-major flattening, as Q-GaLore stores weights (Zhang et al., arXiv
// 2407.08296), except that the coded range always includes 0. Layout: codes u8 [elements], scales
// f32 [groups], zero points u8 [groups].
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& int8_affine_format();

}  // namespace jackscrew
