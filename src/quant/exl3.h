// The storage formats of weights that ExLlamaV3 has quantised (EXL3, after QTIP: Tseng et al.,
// arXiv 2406.11235): a bit stream with 1 to 8 bits per number, where each number is a function of
// the 16 bits that end with its own, and Hadamard transforms H of 128 columns and of 128 rows:
//   W = svh * (H numbers H / 128) * suh
// The parts of a matrix, each at the next multiple of 64 bytes, as files have them:
//   trellis  u16 [cols / 16, rows / 16, 16 * bits]  a tile of 16 columns and 16 rows: 256 numbers,
//                                                   each the next `bits` bits of a ring of 32-bit
//                                                   words, the highest bits first
//   suh      f16 [cols]
//   svh      f16 [rows]
// Columns and rows are multiples of 128; the last rows may be padding that the model does not have.
// Values are computed in f32, in this order: sums and differences of rows 1, 2, 4, ... 64 apart, of
// columns 1, 2, 4, ... 64 apart, times suh, times svh / 128.
#pragma once

#include "quant/format.h"

namespace jackscrew {

// How 16 bits become a number; see exl3.rows.h.
enum class Exl3Codebook : uint8_t { plain, mcg, mul1 };

struct Exl3Layout {
  int64_t rows, cols;  // in the file, padding included
  int64_t bits;        // per number
  Exl3Codebook codebook = Exl3Codebook::plain;
};

// Makes an instance for matrices of that layout, which inspect shows as exl3_4bit and so on. Throws
// Error(model) for extents or bits that EXL3 does not have.
FormatPointer make_exl3_format(const Exl3Layout& layout);

}  // namespace jackscrew
