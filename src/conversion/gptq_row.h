// Rounds the columns of one row for GPTQ; compiled once per instruction set (gptq_row.isa.cc).
#pragma once

#include <cstdint>

#include "base/half.h"

namespace jackscrew {

inline constexpr int64_t kGptqColumns = 128;  // of a block, at most

// Columns [begin, end) of a matrix in the order of rounding.
struct GptqColumns {
  float* w;           // [rows, cols]
  const float* u;     // [cols, cols], InverseFactor's; null: no compensation by later columns
  const float* cost;  // [cols], of a squared error
  int64_t cols, begin, end;
  int64_t group_size, groups;  // of a row
  int64_t bits;
  bool symmetric;
  uint8_t* codes;  // [rows, cols]
  uint8_t* zeros;  // [rows, groups]
  f16* scales;     // [rows, groups]
  float* errors;   // [rows, kGptqColumns], of the block's columns, divided by U_kk
};

// Replaces w by the values of the codes; columns after each one, up to `end`, compensate for its
// error.
using GptqRowKernel = void (*)(const GptqColumns& args, int64_t row);

namespace v3 {
extern const GptqRowKernel kRoundGptqRow;
}
namespace v4 {
extern const GptqRowKernel kRoundGptqRow;
}

}  // namespace jackscrew
