// The storage format int4_affine: codes of four bits with an f32 scale and a zero point per group
// of 256 elements of the row-major flattening, 4.16 bits an element: how Q-GaLore keeps its
// projections (Zhang et al., arXiv 2407.08296, but packed, and for a range that includes 0).
// Layout: codes u8 [ceil(elements / 2)], scales f32 [groups], zero points u8 [groups]. For weights
// nf4 is better, so that it has no name in recipes.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& int4_affine_format();

}  // namespace jackscrew
