#include "quant/q3_k.h"

#include "quant/block_format.h"
#include "quant/q3_k.rows.h"

namespace jackscrew {

const Format& q3_k_format() {
  static const BlockFormat<Q3_KBlock> kFormat("q3_k");
  return kFormat;
}

}  // namespace jackscrew
