// The dynamic 8-bit maps of block-wise quantisation (Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization", arXiv 2110.02861, appendix F): 256 numbers of which each decade below 1
// has half as many as the one above. A code is the index of a number.
//
// The values are the closed form, rounded once. Those of bitsandbytes go through torch.linspace in
// f32 and differ by up to 2 units in the last place.
#pragma once

#include <cstdint>

#include "kernels/row_kernel.h"

namespace jackscrew {

// A kernel holds a map among its arguments, so that it needs no memory of its own on any device.
struct DynamicMap {
  float values[256];  // ascending
  int32_t zero;       // the index of 0
};

const DynamicMap& signed_dynamic_map();    // from -0.993 to 1: -1 has no value of its own
const DynamicMap& unsigned_dynamic_map();  // from 0 to 1

// The last value that is not above x; the first where all are.
JACKSCREW_ROW int32_t dynamic_code_below(const DynamicMap& map, float x) {
  // A bisection, written out: GCC vectorises the loop around it only without a loop inside.
  int32_t code = map.values[128] <= x ? 128 : 0;
  code += map.values[code + 64] <= x ? 64 : 0;
  code += map.values[code + 32] <= x ? 32 : 0;
  code += map.values[code + 16] <= x ? 16 : 0;
  code += map.values[code + 8] <= x ? 8 : 0;
  code += map.values[code + 4] <= x ? 4 : 0;
  code += map.values[code + 2] <= x ? 2 : 0;
  code += map.values[code + 1] <= x ? 1 : 0;
  return code;
}

// The value nearest to x, the lower of two that are equally near.
JACKSCREW_ROW int32_t dynamic_code(const DynamicMap& map, float x) {
  const int32_t below = dynamic_code_below(map, x);
  const int32_t above = below < 255 ? below + 1 : 255;
  return x > 0.5f * (map.values[below] + map.values[above]) ? above : below;
}

// The same on x's own side of 0: what is not 0 does not become 0, nor change its sign.
JACKSCREW_ROW int32_t dynamic_code_keeping_sign(const DynamicMap& map, float x) {
  const int32_t code = dynamic_code(map, x);
  const int32_t lowest = x > 0.0f ? map.zero + 1 : 0;
  const int32_t highest = x < 0.0f ? map.zero - 1 : 255;
  const int32_t raised = code < lowest ? lowest : code;
  return raised > highest ? highest : raised;
}

// One of the two values around x, chosen by `uniform` of [0, 1) so that x is what is expected.
JACKSCREW_ROW int32_t dynamic_code_stochastic(const DynamicMap& map, float x, float uniform) {
  const int32_t below = dynamic_code_below(map, x);
  const int32_t above = below < 255 ? below + 1 : 255;
  const float gap = map.values[above] - map.values[below];
  return x - map.values[below] > uniform * gap ? above : below;
}

}  // namespace jackscrew
