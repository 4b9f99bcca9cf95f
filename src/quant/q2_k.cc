#include "quant/q2_k.h"

#include "quant/block_format.h"
#include "quant/q2_k.rows.h"

namespace jackscrew {

const Format& q2_k_format() {
  static const BlockFormat<Q2_KBlock> kFormat("q2_k");
  return kFormat;
}

}  // namespace jackscrew
