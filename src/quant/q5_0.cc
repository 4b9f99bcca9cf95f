#include "quant/q5_0.h"

#include "quant/block_format.h"
#include "quant/q5_0.rows.h"

namespace jackscrew {

const Format& q5_0_format() {
  static const BlockFormat<Q5_0Block> kFormat("q5_0");
  return kFormat;
}

}  // namespace jackscrew
