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
// a scale, or round by themselves: see block_row.h about fused sums.
#pragma once

#include "kernels/row_dot.h"
#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "quant/rounding.h"

namespace jackscrew {

struct GroupLayout {
  int64_t cols;
  int64_t group;       // elements
  int64_t row_groups;  // in a row; 0: groups of the flattening
};

// Calls f(group, element, at, count) for the pieces of columns [begin, end) of a row that lie in
// one group each, `at` being the column of the first element.
template <class F>
JACKSCREW_ROW void for_pieces(const GroupLayout& layout, int64_t row, int64_t begin, int64_t end,
                              const F& f) {
  const int64_t first = row * layout.cols;
  const int64_t place = (layout.row_groups > 0 ? 0 : first) + begin;
  int64_t group = place / layout.group + row * layout.row_groups;
  int64_t left = layout.group - place % layout.group;
  for (int64_t at = begin; at < end;) {
    const int64_t count = left < end - at ? left : end - at;
    f(group, first + at, at, count);
    at += count;
    ++group;
    left = layout.group;
  }
}
// Calls f for the pieces of a whole row.
template <class F>
JACKSCREW_ROW void for_pieces(const GroupLayout& layout, int64_t row, const F& f) {
  for_pieces(layout, row, 0, layout.cols, f);
}

// Writes code(i), an int32_t, as byte i of `to`. Bytes are narrowed in a loop of their own (see
// Team::Int32x16), in chunks that stay in registers or the nearest cache.
template <class Team, class Byte, class F>
JACKSCREW_ROW void put_bytes(const Team& team, Byte* to, int64_t count, const F& code) {
  constexpr int64_t kChunk = 64;
  typename Team::template RowRegisters<int32_t, kChunk> wide;
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

// As put_bytes(), but of code(i), or where stochastic code(i, uniform), random in [0, 1) for each
// i.
template <class Team, class Byte, class Code>
JACKSCREW_ROW void put_rounded(const Team& team, const GroupRounding& rounding, int64_t count,
                               Byte* to, const Code& code) {
  if (!rounding.of_all.stochastic) {
    const auto nearest = [&](int64_t i) { return code(i); };
    if constexpr (Team::kHasEights) {
      team.put_bytes(to, count, nearest);
    } else {
      put_bytes(team, to, count, nearest);
    }
    return;
  }
  const RandomStream random = rounding_stream(rounding.of_all);
  constexpr int64_t kChunk = 64;
  typename Team::template RowRegisters<int32_t, kChunk> wide;
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

// Where a team's threads have eight elements at a time (Team::kHasEights), a codec is decoded so
// whose groups have an exponent of at least 3 (group_exponent()), if it says
//   template <class Team>
//   auto eights(const Team&) const
//     f(group, element, put): put(i, value) for i in [0, 8), for eight elements of a group from a
//     multiple of eight on, and gives the factor of these values; all threads of a team call it
//     together
// and has `codes`, which are read eight at a time. Values are in units of codec.scale(row) if it
// has kDecodesUnits.
template <class Team, class Codec>
concept DecodesEights = Team::kHasEights && requires(const Team& team, const Codec& codec) {
  codec.eights(team);
};

// Calls put(i, byte i as an integer) for eight bytes, which begin at a multiple of eight.
template <class Byte, class Put>
JACKSCREW_ROW void each_of_eight_bytes(const Byte* bytes, const Put& put) {
  const uint64_t word = *reinterpret_cast<const uint64_t*>(bytes);
  for (uint32_t i = 0; i < 8; ++i) {
    put(i, static_cast<int32_t>(static_cast<Byte>(static_cast<uint8_t>(word >> (8 * i)))));
  }
}

// The exponent of groups of two to its power; 63 where a group is the row, -1 where it is neither:
// a GPU would divide for longer than it takes for all else of eight elements.
JACKSCREW_ROW int32_t group_exponent(const GroupLayout& layout) {
  if (layout.row_groups > 0 && layout.group >= layout.cols) return 63;
  int32_t exponent = 0;
  while (int64_t{2} << exponent <= layout.group) ++exponent;
  return layout.group == int64_t{1} << exponent ? exponent : -1;
}

// Whether rows and their places, that of the floats beside them too, are multiples of eight
// elements, and groups of at least as many have an exponent.
template <class Team, class Codec, class Element>
JACKSCREW_ROW bool has_eights(const Team& team, const GroupLayout& layout, const Codec& codec,
                              const Element* beside) {
  return layout.cols % 8 == 0 && group_exponent(layout) >= 3 &&
         team.can_have_eights(codec.codes, beside);
}

// f(column, put) for eight elements of row `row` from a column on; as of Codec::eights().
template <class Team, class Codec>
JACKSCREW_ROW auto row_eights(const Team& team, const GroupLayout& layout, const Codec& codec,
                              int64_t row) {
  const int64_t first = row * layout.cols;
  const int64_t place = layout.row_groups > 0 ? 0 : first;
  const int64_t first_group = row * layout.row_groups;
  const int32_t exponent = group_exponent(layout);
  return [=, eights = codec.eights(team)](uint32_t column, const auto& put) {
    return eights(first_group + ((place + column) >> exponent), first + column, put);
  };
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
    if constexpr (DecodesEights<Team, Codec>) {
      if (out_bf16 ? decode_eights(team, source, static_cast<bf16*>(out) + row * out_stride)
                   : decode_eights(team, source, static_cast<float*>(out) + row * out_stride)) {
        return;
      }
    }
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

 private:
  // False where that is not possible.
  template <class Team, class Element>
  JACKSCREW_ROW bool decode_eights(const Team& team, int64_t source, Element* to) const {
    if (!has_eights(team, layout, codec, to)) return false;
    team.each_eight(static_cast<uint32_t>(layout.cols), row_eights(team, layout, codec, source),
                    to);
    return true;
  }
};

// A codec of four bits, two in a byte with the even element in the high nibble, has a faster
// product of rows where Team::kHasDot, if it says
//   template <class Dot>
//   auto dot_numbers() const  // what its codes stand for: a Dot::Table
//   template <class Dot, class Team>
//   const float* scales(const Team&, int64_t group, int64_t count, float* buffer) const
//     the scales of so many groups, where they lie or in the buffer
// and has `codes` and `scale(group)`.
template <class Codec>
concept HasGroupDot = requires {
  Codec::kHasDotNumbers;
};

// A codec of bytes, signed or not, has it if it says
//   float dot_scale(int64_t group) const
//   int32_t dot_zero(int64_t group) const  // what is taken from each byte
// and has `codes`.
template <class Codec>
concept HasByteDot = requires(const Codec& codec) {
  codec.dot_zero(0);
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
    const float total = dot(team, row);
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }

  // Rows [begin, end), which share the rounded x.
  template <class Team>
  requires(Team::kHasDot && (HasGroupDot<Codec> || HasByteDot<Codec>)) JACKSCREW_ROW
      void rows(const Team& team, int64_t begin, int64_t end) const {
    using Dot = typename Team::Dot;
    if (layout.cols % Dot::kGroup != 0 || layout.group % Dot::kGroup != 0) {
      for (int64_t row = begin; row < end; ++row) (*this)(team, row);
    } else if constexpr (HasByteDot<Codec>) {
      rows_of_bytes<Dot>(begin, end);
    } else {
      rows_of_nibbles<Dot>(team, begin, end);
    }
  }

 private:
  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t row) const {
    if constexpr (DecodesEights<Team, Codec>) {
      if (has_eights(team, layout, codec, x)) {
        const float sum = team.dot_eights(static_cast<uint32_t>(layout.cols),
                                          row_eights(team, layout, codec, row), x);
        if constexpr (requires { Codec::kDecodesUnits; }) return sum * codec.scale(row);
        return sum;
      }
    }
    float total = 0.0f;
    for_pieces(layout, row, [&](int64_t group, int64_t element, int64_t at, int64_t count) {
      total += codec.dot(team, group, element, count, x + at);
    });
    return total;
  }

  template <class Dot>
  JACKSCREW_ROW void rows_of_bytes(int64_t begin, int64_t end) const {
    typename Dot::template Buffer<DotScales::groups> in;
    for (int64_t first = 0; first < layout.cols; first += Dot::kColumns) {
      const int64_t left = layout.cols - first;
      const int64_t count = left < Dot::kColumns ? left : Dot::kColumns;
      in.template prepare<typename Dot::Bytes, DotLayout::bytes>(x + first, count);
      for (int64_t row = begin; row < end; ++row) {
        Dot dot;
        for_pieces(layout, row, first, first + count,
                   [&](int64_t group, int64_t element, int64_t at, int64_t piece) {
                     add_bytes(dot, group, element, in.input(), at - first, piece);
                   });
        y[row] = accumulate || first > 0 ? y[row] + dot.total() : dot.total();
      }
    }
  }

  // `count` bytes of a group, from place `at` of the input on.
  template <class Dot>
  JACKSCREW_ROW void add_bytes(Dot& dot, int64_t group, int64_t element,
                               const typename Dot::Input& in, int64_t at, int64_t count) const {
    const float scale = codec.dot_scale(group);
    const auto zero = Dot::filled(static_cast<int16_t>(codec.dot_zero(group)));
    for (int64_t i = 0; i < count; i += Dot::kGroup) {
      dot.add_words(Dot::difference(Dot::widened(codec.codes + element + i), zero),
                    scale * in.scales[(at + i) / Dot::kGroup], in.numbers + at + i);
    }
  }

  template <class Dot, class Team>
  JACKSCREW_ROW void rows_of_nibbles(const Team& team, int64_t begin, int64_t end) const {
    typename Dot::template Buffer<DotScales::groups> in;
    float scales[decltype(in)::kFloats];
    const auto numbers = codec.template dot_numbers<Dot>();
    for (int64_t first = 0; first < layout.cols; first += Dot::kColumns) {
      const int64_t left = layout.cols - first;
      const int64_t count = left < Dot::kColumns ? left : Dot::kColumns;
      in.template prepare<decltype(numbers), DotLayout::pairs>(x + first, count);
      for (float& scale : scales) scale = 0.0f;
      for (int64_t row = begin; row < end; ++row) {
        put_scales<Dot>(team, row, first, count, in.scales, scales);
        const uint8_t* codes = codec.codes + (row * layout.cols + first) / 2;
        const float part = row_part<Dot>(numbers, codes, scales, in.numbers, count);
        y[row] = accumulate || first > 0 ? y[row] + part : part;
      }
    }
  }

  // The scale of each 32 elements, x's included.
  template <class Dot, class Team>
  JACKSCREW_ROW void put_scales(const Team& team, int64_t row, int64_t first, int64_t count,
                                const float* of_x, float* to) const {
    constexpr int64_t kCommon = 2 * Dot::kGroup;  // what most writers of files choose
    const int64_t element = row * layout.cols + first;
    if (layout.group == kCommon && layout.row_groups == 0 && element % kCommon == 0 &&
        count % kCommon == 0) {
      float buffer[Dot::kColumns / kCommon];
      const float* of_groups =
          codec.template scales<Dot>(team, element / kCommon, count / kCommon, buffer);
      team.each(count / kCommon, [&](int64_t i) {
        to[2 * i] = of_groups[i] * of_x[2 * i];
        to[2 * i + 1] = of_groups[i] * of_x[2 * i + 1];
      });
      return;
    }
    for_pieces(layout, row, first, first + count,
               [&](int64_t group, int64_t, int64_t at, int64_t piece) {
                 const float scale = codec.scale(group);
                 const int64_t begin = (at - first) / Dot::kGroup;
                 for (int64_t i = begin; i < begin + piece / Dot::kGroup; ++i) {
                   to[i] = scale * of_x[i];
                 }
               });
  }

  template <class Dot, class Numbers>
  JACKSCREW_ROW static float row_part(const Numbers& numbers, const uint8_t* codes,
                                      const float* scales, const int16_t* x, int64_t count) {
    constexpr int64_t kBytes = Dot::kVector / 2;
    Dot dot;
    const auto add = [&](int64_t vector, const uint8_t* from) {
      dot.add(numbers, Dot::codes(from),
              Dot::Scales::load(scales + vector * Dot::kLanes).lanes(0, 1),
              x + vector * Dot::kVector);
    };
    const int64_t full = count / Dot::kVector;
    for (int64_t vector = 0; vector < full; ++vector) add(vector, codes + vector * kBytes);
    const int64_t rest = (count - full * Dot::kVector) / 2;  // bytes
    if (rest > 0) {
      uint8_t last[kBytes] = {};
      for (int64_t i = 0; i < rest; ++i) last[i] = codes[full * kBytes + i];
      add(full, last);
    }
    return dot.total();
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
