// The storage format int4_affine: 4-bit codes with an f32 scale and a zero point per group of 256
// elements of the row-major flattening, 4.16 bits an element. Q-GaLore stores its projections so
// (Zhang et al., arXiv 2407.08296), except that here codes are packed and the coded range always
// includes 0. Layout: codes u8 [ceil(elements / 2)], scales f32 [groups], zero points u8 [groups].
// It has no name in recipes, because nf4 is better for weights.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& int4_affine_format();

}  // namespace jackscrew
