#include "quant/gguf_formats.h"

#include "quant/block_format.h"
#include "quant/fp4.rows.h"
#include "quant/iq1.rows.h"
#include "quant/iq2.rows.h"
#include "quant/iq3.rows.h"
#include "quant/iq4.rows.h"
#include "quant/q2_k.rows.h"
#include "quant/q3_k.rows.h"
#include "quant/q4_0.rows.h"
#include "quant/q4_1.rows.h"
#include "quant/q4_k.rows.h"
#include "quant/q5_0.rows.h"
#include "quant/q5_1.rows.h"
#include "quant/q5_k.rows.h"
#include "quant/q6_k.rows.h"
#include "quant/q8_0.rows.h"
#include "quant/ternary.rows.h"

namespace jackscrew {

namespace {

template <class Block>
const Format& block_format(const char* name) {
  static const BlockFormat<Block> kFormat(name);
  return kFormat;
}

}  // namespace

const Format& q8_0_format() {
  return block_format<Q8_0Block>("q8_0");
}
const Format& q4_0_format() {
  return block_format<Q4_0Block>("q4_0");
}
const Format& q4_1_format() {
  return block_format<Q4_1Block>("q4_1");
}
const Format& q5_0_format() {
  return block_format<Q5_0Block>("q5_0");
}
const Format& q5_1_format() {
  return block_format<Q5_1Block>("q5_1");
}
const Format& q2_k_format() {
  return block_format<Q2_KBlock>("q2_k");
}
const Format& q3_k_format() {
  return block_format<Q3_KBlock>("q3_k");
}
const Format& q4_k_format() {
  return block_format<Q4_KBlock>("q4_k");
}
const Format& q5_k_format() {
  return block_format<Q5_KBlock>("q5_k");
}
const Format& q6_k_format() {
  return block_format<Q6_KBlock>("q6_k");
}
const Format& iq1_s_format() {
  return block_format<IQ1_SBlock>("iq1_s");
}
const Format& iq1_m_format() {
  return block_format<IQ1_MBlock>("iq1_m");
}
const Format& iq2_xxs_format() {
  return block_format<IQ2_XXSBlock>("iq2_xxs");
}
const Format& iq2_xs_format() {
  return block_format<IQ2_XSBlock>("iq2_xs");
}
const Format& iq2_s_format() {
  return block_format<IQ2_SBlock>("iq2_s");
}
const Format& iq3_xxs_format() {
  return block_format<IQ3_XXSBlock>("iq3_xxs");
}
const Format& iq3_s_format() {
  return block_format<IQ3_SBlock>("iq3_s");
}
const Format& iq4_nl_format() {
  return block_format<IQ4_NLBlock>("iq4_nl");
}
const Format& iq4_xs_format() {
  return block_format<IQ4_XSBlock>("iq4_xs");
}
const Format& tq1_0_format() {
  return block_format<TQ1_0Block>("tq1_0");
}
const Format& tq2_0_format() {
  return block_format<TQ2_0Block>("tq2_0");
}
const Format& mxfp4_format() {
  return block_format<MXFP4Block>("mxfp4");
}
const Format& nvfp4_format() {
  return block_format<NVFP4Block>("nvfp4");
}

}  // namespace jackscrew
