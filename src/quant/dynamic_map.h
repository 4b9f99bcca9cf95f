// The dynamic 8-bit maps of block-wise quantisation (Dettmers et al., "8-bit Optimizers via
// Block-wise Quantization", arXiv 2110.02861, appendix F): 256 numbers of which each decade below 1
// has half as many as the one above. A code is the index of a number.
//
// The values are the closed form, rounded once. Those of bitsandbytes go through torch.linspace in
// f32 and differ by up to 2 units in the last place.
#pragma once

#include <cstdint>

#include "kernels/row_math.h"

namespace jackscrew {

// A kernel holds a map among its arguments, so that it needs no memory of its own on any device.
struct DynamicMap {
  // magnitude * slope - shift is the cell of a magnitude of that decade, counted over all decades.
  // Every decade is less steep than the one below, which it meets at its beginning: the cell of any
  // magnitude is the smallest of these numbers.
  struct Decade {
    float slope, shift;
  };
  float values[256];  // ascending
  Decade decades[7];
  int32_t zero;  // the index of 0
};

// A map whose values a kernel has copied to where it reads them faster.
struct NearDynamicMap {
  const float* values;  // [256]
  const DynamicMap::Decade (&decades)[7];
  int32_t zero;
};

const DynamicMap& signed_dynamic_map();    // from -0.993 to 1: -1 has no value of its own
const DynamicMap& unsigned_dynamic_map();  // from 0 to 1

// Map is DynamicMap or NearDynamicMap.

// The index, from 1 to 254, of the value nearest to x or of one beside it, computed from the decade
// and the place in it. A search of the values takes three times as long.
template <class Map>
JACKSCREW_ROW int32_t dynamic_code_guess(const Map& map, float x) {
  const float magnitude = row_min(__builtin_fabsf(x), 1.0f);  // 1 for NaN
  float cell = magnitude * map.decades[0].slope - map.decades[0].shift;
  for (int32_t e = 1; e < 7; ++e) {
    cell = row_min(cell, magnitude * map.decades[e].slope - map.decades[e].shift);
  }
  const int32_t place = 1 + static_cast<int32_t>(row_max(cell, 0.0f));
  const int32_t wanted = x < 0.0f ? map.zero - place : map.zero + place;
  const int32_t raised = wanted < 1 ? 1 : wanted;
  return raised > 254 ? 254 : raised;
}

// The value nearest to x, the lower of two that are equally near.
template <class Map>
JACKSCREW_ROW int32_t dynamic_code(const Map& map, float x) {
  const int32_t guess = dynamic_code_guess(map, x);
  const float value = map.values[guess];
  const int32_t up = x > 0.5f * (value + map.values[guess + 1]) ? 1 : 0;
  const int32_t down = x <= 0.5f * (map.values[guess - 1] + value) ? 1 : 0;
  return guess + up - down;
}

// The nearest value on x's own side of 0: a nonzero x neither becomes 0 nor changes its sign.
template <class Map>
JACKSCREW_ROW int32_t dynamic_code_keeping_sign(const Map& map, float x) {
  const int32_t code = dynamic_code(map, x);
  const int32_t lowest = x > 0.0f ? map.zero + 1 : 0;
  const int32_t highest = x < 0.0f ? map.zero - 1 : 255;
  const int32_t raised = code < lowest ? lowest : code;
  return raised > highest ? highest : raised;
}

// Stochastic rounding: one of the two values around x, chosen by `uniform` in [0, 1) so that the
// expected value is x.
template <class Map>
JACKSCREW_ROW int32_t dynamic_code(const Map& map, float x, float uniform) {
  const int32_t guess = dynamic_code_guess(map, x);
  const int32_t up = map.values[guess + 1] <= x ? 1 : 0;
  const int32_t down = map.values[guess] > x ? 1 : 0;
  const int32_t found = guess + up - down;
  const int32_t below = found < 254 ? found : 254;
  const float low = map.values[below];
  return below + (x - low > uniform * (map.values[below + 1] - low) ? 1 : 0);
}

}  // namespace jackscrew
