#include "quant/iq3.h"

#include "quant/block_format.h"
#include "quant/iq3.rows.h"

namespace jackscrew {

const Format& iq3_xxs_format() {
  static const BlockFormat<IQ3_XXSBlock> kFormat("iq3_xxs");
  return kFormat;
}

const Format& iq3_s_format() {
  static const BlockFormat<IQ3_SBlock> kFormat("iq3_s");
  return kFormat;
}

}  // namespace jackscrew
