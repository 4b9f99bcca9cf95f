// nf4: blocks of 64 elements of the row-major flattening, two codes in a byte, the even element in
// the high nibble. Value: absmax * number of the code. In nf4_double the absmax of a block is
// itself coded: nested absmax * map[code] + offset.
#pragma once

#include "quant/dynamic_map.h"
#include "quant/group_row.h"
#include "quant/nibbles.h"

namespace jackscrew {

// The numbers that codes stand for. A kernel holds it among its arguments, as a DynamicMap.
struct FourBitCodebook {
  float values[16];      // from -1 to 1; those of NF4 ascend
  float thresholds[15];  // between them, for encoding
};

// The value nearest to x.
JACKSCREW_ROW int32_t nf4_code(const FourBitCodebook& codebook, float x) {
  int32_t code = 0;
  for (int32_t i = 0; i < 15; ++i) code += x > codebook.thresholds[i] ? 1 : 0;
  return code;
}

// One of the two values around x, chosen by `uniform` of [0, 1) so that x is what is expected.
JACKSCREW_ROW int32_t nf4_code(const FourBitCodebook& codebook, float x, float uniform) {
  int32_t below = 0;
  for (int32_t i = 1; i < 15; ++i) below += x >= codebook.values[i] ? 1 : 0;
  const float gap = codebook.values[below + 1] - codebook.values[below];
  return below + (x - codebook.values[below] > uniform * gap ? 1 : 0);
}

struct Nf4Codec {
  static constexpr int64_t kNestedBlock = 256;  // absmax that are coded together
  static constexpr int32_t kZero = 7;           // the code of 0

  FourBitCodebook codebook;
  uint8_t* codes;  // [ceil(elements / 2)]
  float* absmax;   // [blocks]; null: as follows
  DynamicMap map;
  uint8_t* absmax_codes;  // [blocks]
  float* nested_absmax;   // [ceil(blocks / kNestedBlock)]
  float* offset;          // [1]

  JACKSCREW_ROW float scale(int64_t block) const {
    if (absmax != nullptr) return absmax[block];
    return scale(nested_absmax[block / kNestedBlock], map.values[absmax_codes[block]]);
  }
  JACKSCREW_ROW float scale(float nested, float of_code) const {
    const float product = nested * of_code;
    // bitsandbytes rounds the product before the sum. A choice keeps a compiler from fusing the
    // two.
    return (product == product ? product : nested) + *offset;
  }

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const float s = scale(group);
    each_nibble_value(team, codes, codebook.values, element, count,
                      [&](int64_t i, float value) { store(i, s * value); });
  }

  // See DecodesEights.
  template <class Team>
  JACKSCREW_ROW auto eights(const Team& team) const {
    return [this, table = team.shared_table(codebook.values)](int64_t group, int64_t element,
                                                              const auto& put) {
      const float s = scale(group);
      each_of_eight_nibbles(codes + element / 2,
                            [&](uint32_t i, uint32_t bits) { put(i, table[bits]); });
      return s;
    };
  }

  // See HasGroupDot.
  template <class Dot, class Team>
  JACKSCREW_ROW const float* scales(const Team& team, int64_t group, int64_t count,
                                    float* buffer) const {
    if (absmax != nullptr) return absmax + group;
    Dot::look_up(map.values, absmax_codes + group, count, buffer);
    for (int64_t i = 0; i < count;) {
      const int64_t left = kNestedBlock - (group + i) % kNestedBlock;
      const int64_t piece = left < count - i ? left : count - i;
      const float nested = nested_absmax[(group + i) / kNestedBlock];
      team.each(piece, [&](int64_t j) { buffer[i + j] = scale(nested, buffer[i + j]); });
      i += piece;
    }
    return buffer;
  }

  // The numbers are rounded to 15 bits, sign included.
  static constexpr bool kHasDotNumbers = true;
  template <class Dot>
  JACKSCREW_ROW auto dot_numbers() const {
    return typename Dot::template Table<16383, 16383>(codebook.values);
  }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    const float sum = dot_nibbles(team, codes, codebook.values, element, count, x);
    return scale(group) * sum;
  }

  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const float* from, const GroupRounding& rounding) const {
    const float largest = largest_magnitude(team, from, count);
    team.once([&] { absmax[group] = largest; });
    const float inverse = largest > 0.0f ? row_min(1.0f / largest, kLargestFloat) : 0.0f;
    put_nibbles(team, rounding, element, count, codes, kZero, [&](int64_t i, auto... uniform) {
      return nf4_code(codebook, from[i] * inverse, uniform...);
    });
  }
};
using DecodeNf4 = DecodeGroups<Nf4Codec>;
using DotNf4 = DotGroups<Nf4Codec>;
using EncodeNf4 = EncodeGroups<Nf4Codec>;
JACKSCREW_ROW_KERNEL(DecodeNf4)
JACKSCREW_ROW_KERNEL(DotNf4)
JACKSCREW_ROW_KERNEL(EncodeNf4)

// Takes the mean of all absmax away from each, so that what is coded lies about 0. One row.
struct Nf4Centre {
  float* absmax;  // [count]
  float* offset;  // [1]
  int64_t count;
  Rounding rounding;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    if (keeps_storage(rounding)) return;
    const double sum =
        team.sum_f64(count, [&](int64_t i) { return static_cast<double>(absmax[i]); });
    const float mean = static_cast<float>(sum / static_cast<double>(count));
    team.each(count, [&](int64_t i) { absmax[i] -= mean; });
    team.once([&] { *offset = mean; });
  }
};
JACKSCREW_ROW_KERNEL(Nf4Centre)

}  // namespace jackscrew
