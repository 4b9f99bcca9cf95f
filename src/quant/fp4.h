// The storage formats mxfp4 and nvfp4; their layouts are described in fp4.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& mxfp4_format();
const Format& nvfp4_format();

}  // namespace jackscrew
