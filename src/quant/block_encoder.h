// How a block of a file's format is encoded: its scales are fitted, then its codes are chosen one
// by one. An Encoder does that for a single block:
//   kColumns, kGroup        elements of a block, and of a group with a scale of its own
//   kBytes                  of a block in files
//   fit(g, x, weights)      finds the best scale of group g for x [kGroup]; weights [kGroup] are of
//                           squared errors
//   set_scales()            once all groups are fitted: rounds what they have in common
//   settle(g, x, weights)   rounds the scale of group g
//   code(i, x)              the code of element i whose value is nearest to x
//   value(i, code)          what it stands for
//   write(codes, out)       the block as files have it
#pragma once

#include <array>
#include <cmath>
#include <cstring>

#include "base/half.h"
#include "quant/row_encoders.h"
#include "quant/scale_search.h"

namespace jackscrew {

// The f16 of which `most` units come to `extreme`. Where f16 is subnormal it may round towards 0 by
// more than half a unit of the extreme: the next f16 is taken then, so that no group's scale lies
// beyond the integers.
inline f16 unit_of(double extreme, double most) {
  const f16 nearest = to_f16(static_cast<float>(extreme / most));
  const double reach = std::abs(static_cast<double>(to_float(nearest))) * (most + 0.5);
  if (reach >= std::abs(extreme)) return nearest;
  return f16{static_cast<uint16_t>(nearest.bits + 1)};  // of either sign
}

// Each element gets the nearest code.
template <class Encoder>
void encode_blocks(const float* x, int64_t cols, uint8_t* out) {
  constexpr size_t kGroups = Encoder::kColumns / Encoder::kGroup;
  for (const float* end = x + cols; x < end; x += Encoder::kColumns, out += Encoder::kBytes) {
    Encoder encoder;
    std::array<std::array<double, Encoder::kGroup>, kGroups> weights;
    for (size_t group = 0; group < kGroups; ++group) {
      const float* of_group = x + group * Encoder::kGroup;
      weights[group] = importance<Encoder::kGroup>(of_group);
      encoder.fit(group, of_group, weights[group].data());
    }
    encoder.set_scales();
    std::array<uint32_t, Encoder::kColumns> codes;
    for (size_t group = 0; group < kGroups; ++group) {
      encoder.settle(group, x + group * Encoder::kGroup, weights[group].data());
    }
    for (size_t i = 0; i < Encoder::kColumns; ++i) {
      codes[i] = encoder.code(i, static_cast<double>(x[i]));
    }
    encoder.write(codes, out);
  }
}

// See RoundBlock.
template <class Encoder>
void round_block(float* x, const int32_t* order, const double* weights,
                 const ElementRounded& rounded, uint8_t* out) {
  Encoder encoder;
  const auto fit = [&](size_t i) {
    encoder.fit(static_cast<size_t>(order[i]) / Encoder::kGroup, x + i, weights + i);
  };
  for (size_t i = 0; i < Encoder::kColumns; i += Encoder::kGroup) fit(i);
  encoder.set_scales();
  std::array<uint32_t, Encoder::kColumns> codes;
  for (size_t i = 0; i < Encoder::kColumns; ++i) {
    const auto element = static_cast<size_t>(order[i]);
    if (i % Encoder::kGroup == 0) {
      if (i > 0) fit(i);  // anew: the elements before have moved this group's
      encoder.settle(element / Encoder::kGroup, x + i, weights + i);
    }
    codes[element] = encoder.code(element, static_cast<double>(x[i]));
    rounded(static_cast<int64_t>(i), static_cast<float>(encoder.value(element, codes[element])));
  }
  encoder.write(codes, out);
}

template <class Encoder>
BlockRounding rounding_of(PlaceBlocks place = nullptr) {
  return {round_block<Encoder>, Encoder::kColumns, Encoder::kBytes, place};
}

template <class Encoder>
RowEncoder row_encoder_of(const Format& format) {
  return {&format, encode_blocks<Encoder>, rounding_of<Encoder>()};
}

// Writes the bytes of a scale.
inline void put_f16(f16 value, uint8_t* out) {
  std::memcpy(out, &value, sizeof value);
}

// Writes the low four bits of 32 codes as 16 bytes, of which byte i has elements i (low nibble) and
// i + 16.
inline void put_nibbles_of_halves(const uint32_t* codes, uint8_t* out) {
  for (size_t i = 0; i < 16; ++i) {
    out[i] = static_cast<uint8_t>((codes[i] & 15) | (codes[i + 16] & 15) << 4);
  }
}

}  // namespace jackscrew
