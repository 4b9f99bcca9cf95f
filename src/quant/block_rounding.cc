#include "quant/block_rounding.h"

#include "quant/nf4.h"
#include "quant/row_encoders.h"

namespace jackscrew {

BlockRounding block_rounding(const Format& format) {
  if (&format == &nf4_format()) return nf4_rounding();
  const RowEncoder* encoder = find_row_encoder(format);
  return encoder == nullptr ? BlockRounding() : encoder->blocks;
}

}  // namespace jackscrew
