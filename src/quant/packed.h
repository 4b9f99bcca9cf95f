// The storage formats of weights that GPTQ, AWQ, ExLlamaV2 and compressed-tensors have quantised:
// integer codes of 2 to 6 or 8 bits in groups along a row, each with a scale and perhaps a zero.
//   value = scale * (code - zero), rounded to the type of the scales
// Files keep the same codes in other orders; readers convert them to this one (see
// quant/packed_source.h), in as many bytes. Codes are stored in the order of the groups: column i
// of a stored row is column `columns[i]` of the matrix (activation order).
//
// The parts of a matrix, each at the next multiple of 64 bytes:
//   groups        PackedGroup [groups]
//   columns       i32 [cols]               if the order is not that of the matrix
//   codes         u8 [rows, code_bytes]    per 32 elements of a group, the last of them padded: the
//                                          low 4 bits of all codes, then 2 bits, then 1 bit of
//                                          each, those that add up to the bits of a code, as
//                                          little-endian words; codes of 8 bits are whole bytes
//   scales        u16 or f32 [rows, groups]; or with squared scales two 4-bit codes in a byte,
//                 u8 [rows, ceil(groups / 2)], the even group in the low half
//   scale_max     u16 [groups]             with squared scales
//   zeros         u8 [rows, zero_bytes]    two to a byte where zeros have 4 bits
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "quant/format.h"
#include "quant/packed_group.h"

namespace jackscrew {

enum class PackedScale : uint8_t {
  f16,
  bf16,
  f32,
  squared  // f16((code + 1)² * scale_max), as ExLlamaV2 has it
};

// Magnitudes from here on are not finite, or not rounded correctly (quant/scale_rounding.h).
float value_limit(PackedScale scale);

enum class PackedZero : uint8_t {
  middle,  // 2^(bits - 1) in every group, not stored
  four_bits,
  eight_bits
};

struct PackedLayout {
  std::vector<PackedGroup> groups;  // `offset` is filled in by packed_layout()
  PackedScale scale = PackedScale::f16;
  PackedZero zero = PackedZero::middle;
  bool permuted = false;   // whether there is a part `columns`
  int64_t code_bytes = 0;  // of a row
};

inline constexpr int64_t kPackedChunk = 32;  // elements whose codes are packed together

// Groups of `size` columns, the last of which may be shorter.
std::vector<int64_t> equal_groups(int64_t cols, int64_t size);

// Groups of the given sizes and bits, one after another. Throws Error(model) for bits other than 2,
// 3, 4, 5, 6 and 8 and for empty groups.
PackedLayout packed_layout(const std::vector<std::pair<int64_t, int64_t>>& sizes_and_bits,
                           PackedScale scale, PackedZero zero, bool permuted);

// Groups of the given sizes, all with codes of `bits` bits.
PackedLayout packed_layout(const std::vector<int64_t>& sizes, int64_t bits, PackedScale scale,
                           PackedZero zero, bool permuted);

// Makes an instance for matrices whose rows have that layout. `name` is what inspect shows.
FormatPointer make_packed_format(std::string name, PackedLayout layout);

// The parts of a matrix that begins at `base`; with a null base, only their sizes.
struct PackedParts {
  Tensor groups, columns, codes, scales, scale_max, zeros;  // u8; empty where absent
  int64_t bytes;                                            // of all
};
PackedParts packed_parts(const PackedLayout& layout, void* base, int64_t rows);

// Packs the codes of up to 32 elements as they lie in the part `codes`: 4 * bits bytes.
void pack_codes(const uint8_t* codes, int64_t count, int64_t bits, uint8_t* to);

}  // namespace jackscrew
