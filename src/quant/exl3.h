// The storage formats of weights that ExLlamaV3 has quantised (EXL3, after QTIP: Tseng et al.,
// arXiv 2406.11235): numbers of 1 to 8 bits that each depend on the 16 bits up to theirs, behind
// Hadamard transforms H of 128 columns and of 128 rows:
//   W = svh * (H numbers H / 128) * suh
// The parts of a matrix, each at the next multiple of 64 bytes, as files have them:
//   trellis  u16 [cols / 16, rows / 16, 16 * bits]  a tile of 16 columns and 16 rows: 256 numbers,
//                                                   each the next `bits` bits of a ring of words of
//                                                   32 bits, the highest first
//   suh      f16 [cols]
//   svh      f16 [rows]
// Columns and rows are multiples of 128; the last rows may be padding that the model does not have.
// Values are computed in f32, in this order: sums of rows 1, 2, 4, ... 64 apart, sums of columns 1,
// 2, 4, ... 64 apart, times suh, times svh / 128.
#pragma once

#include "quant/format.h"

namespace jackscrew {

enum class Exl3Book : uint8_t { plain, mcg, mul1 };

struct Exl3Layout {
  int64_t rows, cols;  // of the file
  int64_t bits;        // of a number
  Exl3Book book = Exl3Book::plain;
};

// An instance for matrices of that layout: exl3_4bit and so on to inspect. Throws Error(model) for
// extents and bits that are none of EXL3.
FormatPointer make_exl3_format(const Exl3Layout& layout);

}  // namespace jackscrew
