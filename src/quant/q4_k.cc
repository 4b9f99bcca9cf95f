#include "quant/q4_k.h"

#include "quant/block_format.h"
#include "quant/q4_k.rows.h"

namespace jackscrew {

const Format& q4_k_format() {
  static const BlockFormat<Q4_KBlock> kFormat("q4_k");
  return kFormat;
}

}  // namespace jackscrew
