// The storage formats iq1_s and iq1_m; their layouts are described in iq1.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& iq1_s_format();
const Format& iq1_m_format();

}  // namespace jackscrew
