// The storage formats nf4 and nf4_double: 4-bit codes into a codebook of 16 numbers, spread like
// normally distributed ones (QLoRA: Dettmers et al., arXiv 2305.14314), laid out as bitsandbytes
// does.
//   nf4         codes u8 [ceil(elements / 2)], absmax f32 [blocks of 64]
//   nf4_double  codes u8 [ceil(elements / 2)], absmax codes u8 [blocks of 64],
//               nested absmax f32 [ceil(blocks / 256)], offset f32 [1]
// fp4 and fp4_double have the same layout with another codebook, bitsandbytes' 4-bit floats. They
// are read only.
#pragma once

#include <span>

#include "quant/block_rounding.h"
#include "quant/format.h"

namespace jackscrew {

const Format& nf4_format();
const Format& nf4_double_format();

const Format& bnb_fp4_format();
const Format& bnb_fp4_double_format();

std::span<const float> nf4_values();      // [16], ascending
std::span<const float> bnb_fp4_values();  // [16], positive ones first

inline constexpr int64_t kNf4Block = 64;         // elements that share an absmax
inline constexpr int64_t kNf4NestedBlock = 256;  // absmax that share a nested absmax

// The parts of a matrix that begins at `base`; with a null base, only their sizes.
struct Nf4Parts {
  Tensor codes;   // u8 [ceil(elements / 2)]
  Tensor absmax;  // f32 [blocks]; in nf4_double u8
  // Only in nf4_double, else empty:
  Tensor nested_absmax;  // f32 [ceil(blocks / 256)]
  Tensor offset;         // f32 [1]
  int64_t bytes;         // of all
};
Nf4Parts nf4_parts(bool is_double, void* base, int64_t rows, int64_t cols);

// How quantize rounds to nf4, for matrices whose columns are whole blocks.
BlockRounding nf4_rounding();

}  // namespace jackscrew
