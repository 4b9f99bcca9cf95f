// The storage format int8_dynamic: the signed dynamic map of dynamic_map.h with an f32 absmax per
// block of the row-major flattening, as bitsandbytes quantises block-wise. Layout: codes u8
// [elements], absmax f32 [blocks].
#pragma once

#include <memory>

#include "quant/format.h"

namespace jackscrew {

const Format& int8_dynamic_format();  // blocks of 128

// Blocks of another size, a power of two up to 256.
std::unique_ptr<Format> make_int8_dynamic_format(const char* name, int64_t block);

}  // namespace jackscrew
