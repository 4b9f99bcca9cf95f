// The storage format q5_k; its layout is described in q5_k.rows.h.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q5_k_format();

}  // namespace jackscrew
