// Rounding of the columns of a group in EXL2, as many rows side by side as fill a register,
// compiled once per instruction set (exl2_tile.isa.cc).
#pragma once

#include <cstdint>

namespace jackscrew {

inline constexpr int64_t kTileColumns = 128;  // of a block, at most
inline constexpr int64_t kTriedScales = 4;    // values of scale_max

// A group of a matrix in the stored order: columns [first, first + count), whole numbers from
// `lowest` = -2^(bits - 1) on times a scale.
struct Exl2Tile {
  float* w;           // [rows, cols]
  const float* cost;  // [cols], of a squared miss
  float* reach;       // [rows], the largest magnitude in the group
  int64_t rows, cols, first, count;
  float lowest;
  // What is tried: scale_max / 256 as f16 has it, the best scale code of each row with it, and what
  // the tile's rows cost together.
  float prescaled[kTriedScales];
  uint8_t* tried_codes;  // [rows, kTriedScales]
  double* tried_costs;   // [tiles, kTriedScales]
  // The rounding, in a block of columns [begin, end).
  int64_t begin, end;
  int64_t chosen;        // of `prescaled`
  const float* u;        // [cols, cols], InverseFactor's
  uint8_t* codes;        // [rows, cols]
  uint8_t* scale_codes;  // [rows]
  float* errors;         // [rows, kTileColumns], of the block's columns, divided by U_kk
  double* sums;          // [rows]; the squares of `errors` are added
};

// Each works on rows [tile_rows * tile, ...), and on no others; the last tile may have fewer.
struct Exl2Kernels {
  int64_t tile_rows;
  void (*find_reach)(const Exl2Tile& args, int64_t tile);
  void (*try_scales)(const Exl2Tile& args, int64_t tile);
  // w becomes what the codes stand for; up to `end` the columns behind make up for what that does.
  void (*round)(const Exl2Tile& args, int64_t tile);
};

namespace v3 {
extern const Exl2Kernels kExl2Kernels;
}
namespace v4 {
extern const Exl2Kernels kExl2Kernels;
}

}  // namespace jackscrew
