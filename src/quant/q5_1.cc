#include "quant/q5_1.h"

#include "quant/block_format.h"
#include "quant/q5_1.rows.h"

namespace jackscrew {

const Format& q5_1_format() {
  static const BlockFormat<Q5_1Block> kFormat("q5_1");
  return kFormat;
}

}  // namespace jackscrew
