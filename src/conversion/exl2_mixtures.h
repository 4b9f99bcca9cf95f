// The ways in which EXL2 may mix bit widths over the columns of a matrix; the most active columns
// get the higher width.
#pragma once

#include <span>

#include "formats/exl2_writer.h"
#include "quant/format.h"

namespace jackscrew {

struct Exl2Mixture {
  int64_t high = 0, low = 0;  // bits
  int64_t high_percent = 0;   // columns with `high` bits, at least; in whole groups
  int64_t group_size = 0;     // columns that share a scale; a multiple of 32
};

// The candidates for the blocks' matrices.
std::span<const Exl2Mixture> exl2_mixtures();
// The value of head_bits that leaves the head unquantised.
inline constexpr int64_t kExl2PlainHead = 16;
// The head's mixture for other head_bits. Throws Error(usage) where there is none.
Exl2Mixture exl2_head_mixture(int64_t bits);

// The groups of a matrix with `cols` columns; the last one takes the remainder.
Exl2Groups exl2_groups(const Exl2Mixture& mixture, int64_t cols);

// The format in which the reader of such files holds a weight in memory.
FormatPointer exl2_format(const Exl2Groups& groups);

// The bytes of a weight in such groups: in the files, everything counted, and in memory
// (quant/packed.h).
int64_t exl2_file_bytes(const WeightSpec& weight, const Exl2Groups& groups);
int64_t exl2_memory_bytes(const WeightSpec& weight, const Exl2Groups& groups);

}  // namespace jackscrew
