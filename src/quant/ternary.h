// The storage formats tq1_0 and tq2_0; their layouts are described in ternary.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& tq1_0_format();
const Format& tq2_0_format();

}  // namespace jackscrew
