// The storage format q6_k; its layout is described in q6_k.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q6_k_format();

}  // namespace jackscrew
