#include "quant/iq1.h"

#include "quant/block_format.h"
#include "quant/iq1.rows.h"

namespace jackscrew {

const Format& iq1_s_format() {
  static const BlockFormat<IQ1_SBlock> kFormat("iq1_s");
  return kFormat;
}

const Format& iq1_m_format() {
  static const BlockFormat<IQ1_MBlock> kFormat("iq1_m");
  return kFormat;
}

}  // namespace jackscrew
