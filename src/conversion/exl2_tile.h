// Rounds the columns of an EXL2 group, as many rows side by side as fill a register; compiled once
// per instruction set (exl2_tile.isa.cc).
#pragma once

#include <cstdint>

namespace jackscrew {

inline constexpr int64_t kTileColumns = 128;  // of a block, at most
inline constexpr int64_t kTriedScales = 4;    // values of scale_max that are tried
inline constexpr int64_t kLeastTileRows = 8;  // of any instruction set

// A group of a matrix in the stored order: columns [first, first + count). A value is a scale times
// a whole number, at least `lowest` = -2^(bits - 1).
struct Exl2Tile {
  float* w;           // [rows, cols]
  const float* cost;  // [cols], of a squared error
  float* row_absmax;  // [rows], the largest magnitude in the group; round() leaves the next group's
  int64_t rows, cols, first, count;
  int64_t next_count;  // columns of the next group in this block, or 0
  float lowest;
  // The candidates: f16(scale_max / 256), each row's best scale code with it, and the total cost of
  // the tile's rows.
  float scale_max_256th[kTriedScales];
  uint8_t* tried_codes;  // [rows, kTriedScales]
  double* tried_costs;   // [tiles, kTriedScales]
  // The rounding, within a block of columns [begin, end).
  int64_t begin, end;
  int64_t chosen;        // index into `scale_max_256th`
  const float* u;        // [cols, cols], InverseFactor's
  uint8_t* codes;        // [rows, cols]
  uint8_t* scale_codes;  // [rows]
  float* errors;         // [rows, kTileColumns], of the block's columns, divided by U_kk
  double* sums;          // [rows], to which the squares of `errors` are added
};

// Each works on rows [tile_rows * tile, tile_rows * (tile + 1)) and no others; the last tile may
// have fewer.
struct Exl2Kernels {
  int64_t tile_rows;
  void (*find_row_absmax)(const Exl2Tile& args, int64_t tile);
  void (*try_scales)(const Exl2Tile& args, int64_t tile);
  // Replaces w by the values of the codes; columns after each one, up to `end`, compensate for its
  // error. The next group is final then, and its row_absmax is found.
  void (*round)(const Exl2Tile& args, int64_t tile);
};

namespace v3 {
extern const Exl2Kernels kExl2Kernels;
}
namespace v4 {
extern const Exl2Kernels kExl2Kernels;
}

}  // namespace jackscrew
