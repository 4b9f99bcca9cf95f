// The row kernels of formats that code elements in groups: either each row of the matrix is cut
// into groups, or its row-major flattening is, across the ends of rows. The last group of a row, or
// of the flattening, may be short.
//
// A format brings a Codec: where the parts of a matrix lie, and for `count` elements of one group
//   template <class Team, class Store>
//   void decode(const Team&, int64_t group, int64_t element, int64_t count, const Store& store)
//     store(i, float) for i in [0, count)
//   template <class Team>
//   float dot(const Team&, int64_t group, int64_t element, int64_t count, const float* x)
//     the sum of x[i] times the value of element i
// and, if it can be encoded,
//   template <class Team>
//   void encode(const Team&, int64_t group, int64_t element, int64_t count, const float* from,
//               const GroupRounding&)
//     the whole of a group
// `element` is the place of the first in the flattening. Values are products of a code's number and
// a scale, or round by themselves: see decode_row.h about fused sums.
#pragma once

#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "quant/rounding.h"

namespace jackscrew {

struct GroupLayout {
  int64_t cols;
  int64_t group;       // elements
  int64_t row_groups;  // in a row; 0: groups of the flattening
};

// Calls f(group, element, at, count) for the pieces of a row that lie in one group each, `at` being
// the column of the first element.
template <class F>
JACKSCREW_ROW void for_pieces(const GroupLayout& layout, int64_t row, const F& f) {
  const int64_t first = row * layout.cols;
  const int64_t place = layout.row_groups > 0 ? 0 : first;
  int64_t group = place / layout.group + row * layout.row_groups;
  int64_t left = layout.group - place % layout.group;
  for (int64_t at = 0; at < layout.cols;) {
    const int64_t count = left < layout.cols - at ? left : layout.cols - at;
    f(group, first + at, at, count);
    at += count;
    ++group;
    left = layout.group;
  }
}

// Writes code(i), an int32_t, as byte i of `to`. Bytes are narrowed in a loop of their own (see
// Team::Sixteen), in chunks that stay in registers or the nearest cache.
template <class Team, class Byte, class F>
JACKSCREW_ROW void put_bytes(const Team& team, Byte* to, int64_t count, const F& code) {
  constexpr int64_t kChunk = 64;
  typename Team::template Kept<int32_t, kChunk> wide;
  for (int64_t done = 0; done < count; done += kChunk) {
    const int64_t part = count - done < kChunk ? count - done : kChunk;
    team.each(part, [&](int64_t i) { wide[i] = code(done + i); });
    team.each(part, [&](int64_t i) { to[done + i] = static_cast<Byte>(wide[i]); });
  }
}

// How the numbers of a group are rounded.
struct GroupRounding {
  Rounding of_all;
  uint64_t block;  // the first of the group's random numbers, in blocks of 64
};

// The same with code(i), or code(i, uniform) for a random number in [0, 1) of each element.
template <class Team, class Byte, class Code>
JACKSCREW_ROW void put_rounded(const Team& team, const GroupRounding& rounding, int64_t count,
                               Byte* to, const Code& code) {
  if (!rounding.of_all.stochastic) {
    put_bytes(team, to, count, [&](int64_t i) { return code(i); });
    return;
  }
  const RandomStream random = rounding_stream(rounding.of_all);
  constexpr int64_t kChunk = 64;
  typename Team::template Kept<int32_t, kChunk> wide;
  uint64_t block = rounding.block;
  for (int64_t done = 0; done < count; done += kChunk, ++block) {
    const int64_t part = count - done < kChunk ? count - done : kChunk;
    team.each_random(random, block, part, [&](int64_t i, uint32_t bits) {
      wide[i] = code(done + i, RandomStream::uniform_of(bits));
    });
    team.each(part, [&](int64_t i) { to[done + i] = static_cast<Byte>(wide[i]); });
  }
}

// NaN becomes infinite: maxima of numbers pass over NaN, and it must not get lost.
JACKSCREW_ROW float nan_to_infinity(float value) {
  return value == value ? value : __builtin_inff();
}

// Infinite where any number is infinite or NaN.
template <class Team>
JACKSCREW_ROW float largest_magnitude(const Team& team, const float* from, int64_t count) {
  return team.max(count, 0.0f,
                  [&](int64_t i) { return nan_to_infinity(__builtin_fabsf(from[i])); });
}

// To a whole number: the nearest, half to even, or either neighbour so that `value` is expected.
JACKSCREW_ROW float round_to_integer(float value) {
  return __builtin_rintf(value);
}
JACKSCREW_ROW float round_to_integer(float value, float uniform) {
  const float below = __builtin_floorf(value);
  return below + (uniform < value - below ? 1.0f : 0.0f);
}

template <class Codec>
struct DecodeGroups {
  static constexpr bool kShortLoops = true;
  Codec codec;
  GroupLayout layout;
  const int32_t* indices;  // row list; null: rows first_row, first_row + 1, ...
  void* out;               // [rows, out_stride] f32, or bf16
  int64_t first_row;
  int64_t out_stride;  // elements
  bool out_bf16;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t source = indices != nullptr ? indices[row] : first_row + row;
    for_pieces(layout, source, [&](int64_t group, int64_t element, int64_t at, int64_t count) {
      if (out_bf16) {
        bf16* to = static_cast<bf16*>(out) + row * out_stride + at;
        codec.decode(team, group, element, count,
                     [=](int64_t i, float value) { to[i] = to_bf16(value); });
      } else {
        float* to = static_cast<float*>(out) + row * out_stride + at;
        codec.decode(team, group, element, count, [=](int64_t i, float value) { to[i] = value; });
      }
    });
  }
};

// A codec of four bits may bring code of its own for products of rows, used where Team::kHasDot and
// all pieces begin and end at multiples of kDotMultiple elements:
//   template <class Dot>
//   void add_to(Dot&, int64_t group, int64_t element, int64_t count, const float* x)
template <class Codec>
concept HasGroupDot = requires {
  Codec::kDotMultiple;
};

// y[row] = sum of x times row `row` of a matrix: the product of a single token.
template <class Codec>
struct DotGroups {
  static constexpr bool kShortLoops = true;
  Codec codec;
  GroupLayout layout;
  const float* x;  // [cols]
  float* y;        // [rows]
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    float total = 0.0f;
    if constexpr (Team::kHasDot && HasGroupDot<Codec>) {
      if (layout.cols % Codec::kDotMultiple == 0 && layout.group % Codec::kDotMultiple == 0) {
        typename Team::Dot dot;
        for_pieces(layout, row, [&](int64_t group, int64_t element, int64_t at, int64_t count) {
          codec.add_to(dot, group, element, count, x + at);
        });
        total = dot.total();
        y[row] = accumulate ? y[row] + total : total;
        return;
      }
    }
    for_pieces(layout, row, [&](int64_t group, int64_t element, int64_t at, int64_t count) {
      total += codec.dot(team, group, element, count, x + at);
    });
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }
};

// Encodes a panel of whole rows. A row of the kernel is a group; a panel begins with one.
template <class Codec>
struct EncodeGroups {
  static constexpr bool kShortLoops = true;
  Codec codec;
  GroupLayout layout;
  const float* from;  // [elements]
  int64_t first_row;  // of the matrix
  int64_t elements;   // of the panel
  Rounding rounding;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    if (keeps_storage(rounding)) return;
    int64_t begin = row * layout.group;
    int64_t end = elements;
    int64_t first_group = first_row * layout.cols / layout.group;
    if (layout.row_groups > 0) {
      const int64_t matrix_row = row / layout.row_groups;
      begin = matrix_row * layout.cols + row % layout.row_groups * layout.group;
      end = (matrix_row + 1) * layout.cols;
      first_group = first_row * layout.row_groups;
    }
    const int64_t count = end - begin < layout.group ? end - begin : layout.group;
    const int64_t blocks = (layout.group + 63) / 64;  // of random numbers, in a group
    codec.encode(team, first_group + row, first_row * layout.cols + begin, count, from + begin,
                 GroupRounding{rounding, static_cast<uint64_t>((first_group + row) * blocks)});
  }
};

}  // namespace jackscrew
