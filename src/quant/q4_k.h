// The storage format q4_k; its layout is described in q4_k.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q4_k_format();

}  // namespace jackscrew
