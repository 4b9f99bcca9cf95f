// The storage format q8_0; its layout is described in q8_0.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q8_0_format();

}  // namespace jackscrew
