// In which ways EXL2 may mix the bits of a matrix' columns, those that are most active first.
#pragma once

#include <span>
#include <vector>

#include "formats/exl2_writer.h"
#include "quant/format.h"

namespace jackscrew {

struct Exl2Mixture {
  int64_t high = 0, low = 0;  // bits
  int64_t high_percent = 0;   // of the columns have the high ones, at least; whole groups
  int64_t group_size = 0;     // columns that share a scale; a multiple of 32
};

// Of the blocks' matrices.
std::span<const Exl2Mixture> exl2_mixtures();
// What head_bits is where the head is not quantised.
inline constexpr int64_t kExl2PlainHead = 16;
// Of the head, for other head_bits. Throws Error(usage) where there is none.
Exl2Mixture exl2_head_mixture(int64_t bits);

// The groups of so many columns; the last takes what is left.
Exl2Groups exl2_groups(const Exl2Mixture& mixture, int64_t cols);

// As the reader of such files holds a weight in memory.
FormatPointer exl2_format(const Exl2Groups& groups);

// The bytes of a weight in such groups: all that files have of it, and what it takes in memory
// (quant/packed.h).
int64_t exl2_file_bytes(const WeightSpec& weight, const Exl2Groups& groups);
int64_t exl2_held_bytes(const WeightSpec& weight, const Exl2Groups& groups);

}  // namespace jackscrew
