// Hadamard transforms of rows as a plain model of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace jackscrew {

inline int64_t largest_block(int64_t width) {
  return std::min<int64_t>(128, width & -width);
}

// Every block of the rows times Sylvester's matrix, by sums of pairs, whose last bits in f32 are
// those of the program. Not divided by the square root of the block.
template <class Number>
std::vector<Number> summed(std::vector<Number> values, int64_t block) {
  for (int64_t apart = 1; apart < block; apart *= 2) {
    for (size_t i = 0; i < values.size(); ++i) {
      if ((static_cast<int64_t>(i) & apart) != 0) continue;
      Number& other = values[i + static_cast<size_t>(apart)];
      const Number sum = values[i] + other;
      other = values[i] - other;
      values[i] = sum;
    }
  }
  return values;
}

}  // namespace jackscrew
