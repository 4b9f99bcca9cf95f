#include "quant/q5_k.h"

#include "quant/block_format.h"
#include "quant/q5_k.rows.h"

namespace jackscrew {

const Format& q5_k_format() {
  static const BlockFormat<Q5_KBlock> kFormat("q5_k");
  return kFormat;
}

}  // namespace jackscrew
