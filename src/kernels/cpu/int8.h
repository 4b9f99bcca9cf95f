// Int8 products, compiled once per instruction set (int8.isa.cc). The instructions multiply an
// unsigned byte by a signed one, so codes of a are raised by a shift, and every sum begins at minus
// what the shift adds to it.
//
// oneDNN is not used: it has one scale per operand, and scaling groups of its sums by way of memory
// took longer than the sums. Without VNNI it also saturates silently for signed codes.
#pragma once

#include <cstdint>

#include "base/checked.h"
#include "kernels/int8_group.h"
#include "kernels/isa.h"

namespace jackscrew {

// With VNNI four products are added in 32 bits. Without it two are added in 16 bits with
// saturation: 2 * 127 * 128 fits, so raised codes must not exceed 127.
inline int32_t int8_shift(IsaLevel isa) {
  return isa >= IsaLevel::v4_vnni ? 128 : 64;
}

// The tile of sums kept in registers: 8 of the 16 vectors of AVX2, which also needs some for 16-bit
// products; 24 of the 32 of AVX-512. Wide rather than high, because b is loaded less often than a.
struct Int8Tile {
  int64_t rows, columns;
};
inline constexpr Int8Tile kInt8TileV3{4, 16};
inline constexpr Int8Tile kInt8TileV4{6, 64};
inline Int8Tile int8_tile(IsaLevel isa) {
  return isa == IsaLevel::v3 ? kInt8TileV3 : kInt8TileV4;
}

// Kernels read the depth in steps of 16 bytes, so rows are padded.
inline constexpr int64_t kInt8Step = 16;
// The row stride of raised codes. Rows a multiple of 1 KiB apart would share few cache sets.
inline int64_t int8_row_bytes(int64_t depth) {
  const int64_t bytes = round_up(depth, kInt8Step);
  return bytes % 1024 == 0 ? bytes + 64 : bytes;
}

// One tile of c over a piece of the depth.
struct Int8Product {
  const uint8_t* a;       // [rows, depth], raised
  const float* a_scales;  // [rows, groups]
  const uint32_t* b;      // packed
  const int32_t* sums;    // [groups, tile columns]
  const float* b_scales;  // [columns]; null: all 1
  float* c;               // [rows, columns]
  int64_t a_stride, a_scales_stride, c_stride;
  int64_t rows, columns;  // of c, at most the tile's
  int64_t depth;          // at most kInt8Depth
  bool accumulate;
};

struct Int8Kernels {
  // Packs `columns` columns of b, in memory [depth, columns] or (transposed) [columns, depth], for
  // depth [0, depth): words of four bytes of the depth, [depth / 4, tile columns], zeros up to the
  // step. Sets `sums` [groups, tile columns] to minus the shift times the sum of each group.
  void (*pack)(const int8_t* b, int64_t stride, bool transposed, int64_t columns, int64_t depth,
               uint32_t* packed, int32_t* sums);
  void (*multiply)(const Int8Product& args);
};

namespace v3 {
extern const Int8Kernels kInt8Kernels;
}
namespace v4 {
extern const Int8Kernels kInt8Kernels;
extern const Int8Kernels kInt8VnniKernels;
}  // namespace v4

}  // namespace jackscrew
