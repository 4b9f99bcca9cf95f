#include "quant/iq2.h"

#include "quant/block_format.h"
#include "quant/iq2.rows.h"

namespace jackscrew {

const Format& iq2_xxs_format() {
  static const BlockFormat<IQ2_XXSBlock> kFormat("iq2_xxs");
  return kFormat;
}

const Format& iq2_xs_format() {
  static const BlockFormat<IQ2_XSBlock> kFormat("iq2_xs");
  return kFormat;
}

const Format& iq2_s_format() {
  static const BlockFormat<IQ2_SBlock> kFormat("iq2_s");
  return kFormat;
}

}  // namespace jackscrew
