#include "quant/q6_k.h"

#include "quant/block_format.h"
#include "quant/q6_k.rows.h"

namespace jackscrew {

const Format& q6_k_format() {
  static const BlockFormat<Q6_KBlock> kFormat("q6_k");
  return kFormat;
}

}  // namespace jackscrew
