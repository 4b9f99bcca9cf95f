#include "quant/q8_0.h"

#include "quant/block_format.h"
#include "quant/q8_0.rows.h"

namespace jackscrew {

const Format& q8_0_format() {
  static const BlockFormat<Q8_0Block> kFormat("q8_0");
  return kFormat;
}

}  // namespace jackscrew
