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

// All scales and all minima, one byte each, group 0 in the lowest.
struct KGroups {
  uint64_t scales, minima;
};
JACKSCREW_ROW KGroups k_groups(const uint8_t* packed) {
  constexpr uint32_t kSix = 0x3F3F3F3F;
  constexpr uint32_t kFour = 0x0F0F0F0F;
  constexpr uint32_t kTopTwo = 0x30303030;  // of six bits, from bits 6 and 7 of a byte
  uint32_t words[3];
  __builtin_memcpy(words, packed, sizeof words);
  const uint32_t scales = (words[2] & kFour) | (words[0] >> 2 & kTopTwo);
  const uint32_t minima = (words[2] >> 4 & kFour) | (words[1] >> 2 & kTopTwo);
  return {(words[0] & kSix) | static_cast<uint64_t>(scales) << 32,
          (words[1] & kSix) | static_cast<uint64_t>(minima) << 32};
}

}  // namespace jackscrew
