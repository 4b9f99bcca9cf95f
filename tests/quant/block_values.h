// For tests that put blocks together by hand.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/half.h"
#include "tests/quant/decode.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

inline void put_f16(std::vector<uint8_t>& block, size_t at, float value) {
  const f16 half = to_f16(value);
  block[at] = static_cast<uint8_t>(half.bits & 0xFF);
  block[at + 1] = static_cast<uint8_t>(half.bits >> 8);
}

// Sets those bits of a byte that are set in `bits`, whose lowest comes to bit `shift`.
inline void put_bits(std::vector<uint8_t>& block, size_t at, size_t shift, int bits) {
  block[at] = static_cast<uint8_t>(block[at] | bits << shift);
}

inline std::vector<float> decode_block(const char* name, const std::vector<uint8_t>& block) {
  const Format& format = find_format(name);
  const int64_t elements = block_elements(format);
  EXPECT_EQ(static_cast<int64_t>(block.size()), format.row_bytes(elements));
  const auto ops = make_test_ops();
  return decode(*ops, format, storage_of(block, 1, elements), 0, 1);
}

}  // namespace jackscrew
