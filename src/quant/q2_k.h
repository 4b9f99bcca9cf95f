// The storage format q2_k; its layout is described in q2_k.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q2_k_format();

}  // namespace jackscrew
