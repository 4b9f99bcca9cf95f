// The storage format q3_k; its layout is described in q3_k.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q3_k_format();

}  // namespace jackscrew
