// The storage format q5_1; its layout is described in q5_1.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q5_1_format();

}  // namespace jackscrew
