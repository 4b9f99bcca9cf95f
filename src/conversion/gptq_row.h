// Rounding of a row's columns in GPTQ, compiled once per instruction set (gptq_row.isa.cc).
#pragma once

#include <cstdint>

#include "base/half.h"

namespace jackscrew {

inline constexpr int64_t kGptqColumns = 128;  // of a block, at most

// Columns [begin, end) of a matrix in the order of rounding.
struct GptqColumns {
  float* w;           // [rows, cols]
  const float* u;     // [cols, cols], InverseFactor's; null: later columns make up for nothing
  const float* cost;  // [cols], of a squared miss
  int64_t cols, begin, end;
  int64_t group_size, groups;  // of a row
  int64_t bits;
  bool symmetric;
  uint8_t* codes;  // [rows, cols]
  uint8_t* zeros;  // [rows, groups]
  f16* scales;     // [rows, groups]
  float* errors;   // [rows, kGptqColumns], of the block's columns, divided by U_kk
};

// w becomes what the codes stand for; up to `end` the columns behind make up for what that does.
using GptqRowKernel = void (*)(const GptqColumns& args, int64_t row);

namespace v3 {
extern const GptqRowKernel kRoundGptqRow;
}
namespace v4 {
extern const GptqRowKernel kRoundGptqRow;
}

}  // namespace jackscrew
