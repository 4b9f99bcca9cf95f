#include "quant/ternary.h"

#include "quant/block_format.h"
#include "quant/ternary.rows.h"

namespace jackscrew {

const Format& tq1_0_format() {
  static const BlockFormat<TQ1_0Block> kFormat("tq1_0");
  return kFormat;
}

const Format& tq2_0_format() {
  static const BlockFormat<TQ2_0Block> kFormat("tq2_0");
  return kFormat;
}

}  // namespace jackscrew
