// The 12 bytes in which Q4_K and Q5_K keep 6-bit scales and minima of 8 groups: groups 0 to 3 have
// their six bits in bytes 0 to 3 (scales) and 4 to 7 (minima), below the top two; groups 4 to 7
// have their low four in bytes 8 to 11 and their high two in those top bits.
#pragma once

#include "kernels/row_kernel.h"

namespace jackscrew {

JACKSCREW_ROW float k_scale(const uint8_t* packed, int64_t group) {
  const int32_t bits =
      group < 4 ? packed[group] & 63 : (packed[group + 4] & 15) | (packed[group - 4] >> 6 << 4);
  return static_cast<float>(bits);
}
JACKSCREW_ROW float k_minimum(const uint8_t* packed, int64_t group) {
  const int32_t bits =
      group < 4 ? packed[group + 4] & 63 : packed[group + 4] >> 4 | (packed[group] >> 6 << 4);
  return static_cast<float>(bits);
}

}  // namespace jackscrew
