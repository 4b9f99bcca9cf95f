// The storage formats of GGUF files whose rows are blocks. The layout of each is described in the
// `.rows.h` that has its Block.
#pragma once

#include "quant/format.h"

namespace jackscrew {

const Format& q8_0_format();
const Format& q4_0_format();
const Format& q4_1_format();
const Format& q5_0_format();
const Format& q5_1_format();
const Format& q2_k_format();
const Format& q3_k_format();
const Format& q4_k_format();
const Format& q5_k_format();
const Format& q6_k_format();
const Format& iq1_s_format();
const Format& iq1_m_format();
const Format& iq2_xxs_format();
const Format& iq2_xs_format();
const Format& iq2_s_format();
const Format& iq3_xxs_format();
const Format& iq3_s_format();
const Format& iq4_nl_format();
const Format& iq4_xs_format();
const Format& tq1_0_format();
const Format& tq2_0_format();
const Format& mxfp4_format();
const Format& nvfp4_format();

}  // namespace jackscrew
