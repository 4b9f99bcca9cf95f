#include "quant/iq4.h"

#include "quant/block_format.h"
#include "quant/iq4.rows.h"

namespace jackscrew {

const Format& iq4_nl_format() {
  static const BlockFormat<IQ4_NLBlock> kFormat("iq4_nl");
  return kFormat;
}

const Format& iq4_xs_format() {
  static const BlockFormat<IQ4_XSBlock> kFormat("iq4_xs");
  return kFormat;
}

}  // namespace jackscrew
