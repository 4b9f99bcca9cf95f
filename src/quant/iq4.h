// The storage formats iq4_nl and iq4_xs; their layouts are described in iq4.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& iq4_nl_format();
const Format& iq4_xs_format();

}  // namespace jackscrew
