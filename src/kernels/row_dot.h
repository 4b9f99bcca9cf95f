// What a storage format says of its rows so that kernels/row_dot_cpu.h can multiply by them.
#pragma once

namespace jackscrew {

// Which elements the codes in byte i are.
enum class DotLayout {
  halves,  // nibbles; of each 16 bytes, 32 elements: i (low nibble) and i + 16
  groups,  // nibbles; of each 32 bytes, 64 elements: i (low nibble) and i + 32
  pairs,   // nibbles; 2 i (high nibble) and 2 i + 1
  bytes    // a byte is an element, when the format has unpacked it
};

// How the scales and sums of x are spaced, so that they meet those of the weight.
enum class DotScales {
  groups,      // one of each for every 32 elements
  alternate,   // the same at even (scales) and at odd places (sums), with 0 between
  half_groups  // for every 16 elements
};

// Places for each 32 elements.
constexpr int dot_stride(DotScales scales) {
  return scales == DotScales::groups ? 1 : 2;
}

}  // namespace jackscrew
