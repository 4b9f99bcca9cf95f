// The storage formats iq2_xxs, iq2_xs and iq2_s; their layouts are described in iq2.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& iq2_xxs_format();
const Format& iq2_xs_format();
const Format& iq2_s_format();

}  // namespace jackscrew
