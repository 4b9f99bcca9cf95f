// The storage format q4_0; its layout is described in q4_0.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q4_0_format();

}  // namespace jackscrew
