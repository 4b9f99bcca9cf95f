// The storage format q4_1; its layout is described in q4_1.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q4_1_format();

}  // namespace jackscrew
