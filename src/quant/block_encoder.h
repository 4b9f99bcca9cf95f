// How a block of a file's format is encoded: its scales are fitted, then its codes are chosen one
// by one. A Block is such a block while that happens:
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
template <class Block>
void encode_blocks(const float* x, int64_t cols, uint8_t* out) {
  constexpr size_t kGroups = Block::kColumns / Block::kGroup;
  for (const float* end = x + cols; x < end; x += Block::kColumns, out += Block::kBytes) {
    Block block;
    std::array<std::array<double, Block::kGroup>, kGroups> weights;
    for (size_t group = 0; group < kGroups; ++group) {
      const float* of_group = x + group * Block::kGroup;
      weights[group] = importance<Block::kGroup>(of_group);
      block.fit(group, of_group, weights[group].data());
    }
    block.set_scales();
    std::array<uint32_t, Block::kColumns> codes;
    for (size_t group = 0; group < kGroups; ++group) {
      block.settle(group, x + group * Block::kGroup, weights[group].data());
    }
    for (size_t i = 0; i < Block::kColumns; ++i) {
      codes[i] = block.code(i, static_cast<double>(x[i]));
    }
    block.write(codes, out);
  }
}

// See RoundBlock.
template <class Block>
void round_block(float* x, const int32_t* order, const double* weights,
                 const ElementRounded& rounded, uint8_t* out) {
  Block block;
  const auto fit = [&](size_t i) {
    block.fit(static_cast<size_t>(order[i]) / Block::kGroup, x + i, weights + i);
  };
  for (size_t i = 0; i < Block::kColumns; i += Block::kGroup) fit(i);
  block.set_scales();
  std::array<uint32_t, Block::kColumns> codes;
  for (size_t i = 0; i < Block::kColumns; ++i) {
    const auto element = static_cast<size_t>(order[i]);
    if (i % Block::kGroup == 0) {
      if (i > 0) fit(i);  // anew: the elements before have moved this group's
      block.settle(element / Block::kGroup, x + i, weights + i);
    }
    codes[element] = block.code(element, static_cast<double>(x[i]));
    rounded(static_cast<int64_t>(i), static_cast<float>(block.value(element, codes[element])));
  }
  block.write(codes, out);
}

template <class Block>
BlockRounding rounding_of(PlaceBlocks place = nullptr) {
  return {round_block<Block>, Block::kColumns, Block::kBytes, place};
}

template <class Block>
RowEncoder block_encoder(const Format& format) {
  return {&format, encode_blocks<Block>, rounding_of<Block>()};
}

// Writes the bytes of a scale.
inline void put_f16(f16 value, uint8_t* out) {
  std::memcpy(out, &value, sizeof value);
}

}  // namespace jackscrew
