#include "quant/q4_1.h"

#include "quant/block_format.h"
#include "quant/q4_1.rows.h"

namespace jackscrew {

const Format& q4_1_format() {
  static const BlockFormat<Q4_1Block> kFormat("q4_1");
  return kFormat;
}

}  // namespace jackscrew
