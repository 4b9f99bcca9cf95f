// The storage format q5_0; its layout is described in q5_0.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q5_0_format();

}  // namespace jackscrew
