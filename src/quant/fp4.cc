#include "quant/fp4.h"

#include "quant/block_format.h"
#include "quant/fp4.rows.h"

namespace jackscrew {

const Format& mxfp4_format() {
  static const BlockFormat<MXFP4Block> kFormat("mxfp4");
  return kFormat;
}

const Format& nvfp4_format() {
  static const BlockFormat<NVFP4Block> kFormat("nvfp4");
  return kFormat;
}

}  // namespace jackscrew
