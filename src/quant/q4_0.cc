#include "quant/q4_0.h"

#include "quant/block_format.h"
#include "quant/q4_0.rows.h"

namespace jackscrew {

const Format& q4_0_format() {
  static const BlockFormat<Q4_0Block> kFormat("q4_0");
  return kFormat;
}

}  // namespace jackscrew
