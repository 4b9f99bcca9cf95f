// The storage formats iq3_xxs and iq3_s; their layouts are described in iq3.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& iq3_xxs_format();
const Format& iq3_s_format();

}  // namespace jackscrew
