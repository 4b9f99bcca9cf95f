// The storage format int4_hadamard: rows as the products int4 and w4a8 multiply them, so that these
// decode nothing. Blocks of a row are multiplied by an orthogonal Hadamard matrix, the largest of a
// power of two up to 128 that divides the row; the numbers that this gives are nearly normal
// whatever the row is, and become 16 even levels about 0, 0.335 times their root mean square apart.
// Value: the transform of scale * code with code in [-8, 7]. 4 bits an element and 32 a row.
// Layout: codes u8 [rows, cols / 2], code + 8, the even element in the high nibble;
// scales f32 [rows]. Rows have an even number of elements.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& int4_hadamard_format();

}  // namespace jackscrew
