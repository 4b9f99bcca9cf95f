// The row kernels of packed formats; the layout is in packed.h.
#pragma once

#include <type_traits>

#include "kernels/row_dot.h"
#include "kernels/row_kernel.h"
#include "kernels/row_math.h"
#include "quant/packed_group.h"
#include "quant/scale_rounding.h"

namespace jackscrew {

// Calls f<bits>() for the bits of a group's codes.
template <class F>
JACKSCREW_ROW void with_bits(int32_t bits, const F& f) {
  switch (bits) {
    case 2:
      f.template operator()<2>();
      break;
    case 3:
      f.template operator()<3>();
      break;
    case 4:
      f.template operator()<4>();
      break;
    case 5:
      f.template operator()<5>();
      break;
    case 6:
      f.template operator()<6>();
      break;
    default:
      f.template operator()<8>();
  }
}

// A matrix: the parts of packed.h.
template <class Scale>
struct PackedMatrix {
  const PackedGroup* groups;  // [group_count]
  const int32_t* columns;     // [cols]; null: in order
  const uint8_t* codes;       // [rows, code_bytes]
  const void* scales;         // [rows, group_count], or 4-bit codes
  const f16* scale_max;       // [group_count]
  const uint8_t* zeros;       // [rows, zero_bytes]; null: the middle
  int64_t group_count, code_bytes;
  bool zeros_in_bytes;
  bool whole_chunks;  // whether every group is a multiple of 32 columns

  template <class Team>
  JACKSCREW_ROW float scale(const Team& team, int64_t row, int64_t group) const {
    if constexpr (Scale::kSquared) {
      const auto* of_row = static_cast<const uint8_t*>(scales) + row * ((group_count + 1) / 2);
      const int32_t code = (of_row[group / 2] >> (group % 2 * 4) & 15) + 1;
      return round_to_f16(static_cast<float>(code * code) * team.half(scale_max[group]));
    } else {
      const auto stored =
          static_cast<const typename Scale::Stored*>(scales)[row * group_count + group];
      if constexpr (std::is_same_v<typename Scale::Stored, f16>) {
        return team.half(stored);
      } else {
        return to_float(stored);
      }
    }
  }

  JACKSCREW_ROW int32_t zero(int64_t row, int64_t group, int32_t bits) const {
    if (zeros == nullptr) return 1 << (bits - 1);
    if (zeros_in_bytes) return zeros[row * group_count + group];
    return zeros[row * ((group_count + 1) / 2) + group / 2] >> (group % 2 * 4) & 15;
  }

  // Calls take(i, at, value) for the elements of a group, where `at` is the stored column and i its
  // place in a chunk of 32, and taken(first, count) after each chunk.
  template <int kBits, class Team, class Take, class Taken>
  JACKSCREW_ROW void each_of(const Team& team, const uint8_t* from, const PackedGroup& group,
                             float scale_of_group, int32_t zero_of_group, const Take& take,
                             const Taken& taken) const {
    const auto number_of = [&](int32_t code) {
      return Scale::rounded(scale_of_group * static_cast<float>(code - zero_of_group));
    };
    // A group of up to 4 bits has no more values than a table has places.
    constexpr bool kFromTable = Team::kHasTables && kBits <= 4;
    float numbers[16];
    if constexpr (kFromTable) {
      team.each(16, [&](int64_t code) { numbers[code] = number_of(static_cast<int32_t>(code)); });
    }
    for (int64_t done = 0; done < group.count; done += 32, from += 4 * kBits) {
      const auto codes_here = team.template unpack<kBits>(from);
      const int64_t first = group.first + done;
      const int64_t left = group.count - done;
      if constexpr (kFromTable) {
        const auto values_here = team.lookup(numbers, codes_here);
        take_some(
            team, first, left, [&](int64_t i) { return values_here[i]; }, take, taken);
      } else {
        take_some(
            team, first, left, [&](int64_t i) { return number_of(codes_here[i]); }, take, taken);
      }
    }
  }

  // Takes the first `left` of 32 elements, or all.
  template <class Team, class ValueOf, class Take, class Taken>
  JACKSCREW_ROW static void take_some(const Team& team, int64_t first, int64_t left,
                                      const ValueOf& value_of, const Take& take,
                                      const Taken& taken) {
    const auto element = [&](int64_t i) { take(i, first + i, value_of(i)); };
    if (left >= 32) {
      team.each(32, element);
      taken(first, int64_t{32});
    } else {
      team.each(left, element);
      taken(first, left);
    }
  }

  template <class Team, class Take, class Taken>
  JACKSCREW_ROW void each(const Team& team, int64_t row, const Take& take,
                          const Taken& taken) const {
    const uint8_t* of_row = codes + row * code_bytes;
    for (int64_t g = 0; g < group_count; ++g) {
      const PackedGroup group = groups[g];
      const uint8_t* from = of_row + group.offset;
      const float s = scale(team, row, g);
      const int32_t z = zero(row, g, group.bits);
      with_bits(group.bits, [&]<int kBits>() JACKSCREW_INLINE_LAMBDA {
        each_of<kBits>(team, from, group, s, z, take, taken);
      });
    }
  }
};

template <class Scale>
struct DecodePacked {
  static constexpr bool kShortLoops = true;
  PackedMatrix<Scale> matrix;
  const int32_t* indices;  // row list; null: rows first_row, first_row + 1, ...
  void* out;               // [rows, out_stride] f32, or bf16
  int64_t first_row;
  int64_t out_stride;  // elements
  bool out_bf16;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    const int64_t source = indices != nullptr ? indices[row] : first_row + row;
    if (out_bf16) {
      write(team, source, static_cast<bf16*>(out) + row * out_stride);
    } else {
      write(team, source, static_cast<float*>(out) + row * out_stride);
    }
  }

 private:
  template <class Team, class To>
  JACKSCREW_ROW void write(const Team& team, int64_t source, To* to) const {
    const int32_t* columns = matrix.columns;
    if (columns == nullptr) {
      matrix.each(
          team, source, [=](int64_t, int64_t at, float value) { to[at] = from_float<To>(value); },
          [](int64_t, int64_t) {});
      return;
    }
    // Values are computed as vectors but stored one by one from memory: faster than extracting
    // lanes.
    typename Team::template RowRegisters<To, 32> values;
    matrix.each(
        team, source, [&](int64_t i, int64_t, float value) { values[i] = from_float<To>(value); },
        [&](int64_t first, int64_t count) {
          team.each_scalar(count, [&](int64_t i) { to[columns[first + i]] = values[i]; });
        });
  }
};

// y[row] = sum of x times row `row` of a matrix: the product of a single token.
template <class Scale>
struct DotPacked {
  static constexpr bool kShortLoops = true;
  PackedMatrix<Scale> matrix;
  const float* x;  // [cols], in the stored order
  float* y;        // [rows]
  bool accumulate;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t row) const {
    typename Team::template Sums<32> lanes;
    matrix.each(
        team, row, [&](int64_t i, int64_t at, float value) { lanes[i] += value * x[at]; },
        [](int64_t, int64_t) {});
    const float total = team.total(lanes);
    team.once([&] { y[row] = accumulate ? y[row] + total : total; });
  }

  // Rows [begin, end), which share the rounded x. Numbers are not rounded to the type of the
  // scales, as decoded ones are: that would take as long as the product. They are off by at most
  // 2^-12 where that is f16. bf16 would be off by 2^-9, and is multiplied as it is decoded.
  template <class Team>
  requires(Team::kHasDot && !Scale::kCoarse) JACKSCREW_ROW
      void rows(const Team& team, int64_t begin, int64_t end) const {
    using Dot = typename Team::Dot;
    if (!matrix.whole_chunks) {
      for (int64_t row = begin; row < end; ++row) (*this)(team, row);
      return;
    }
    const PackedGroup& last = matrix.groups[matrix.group_count - 1];
    const int64_t cols = last.first + last.count;
    typename Dot::template Buffer<DotScales::groups> in;
    int64_t group = 0;
    for (int64_t first = 0; first < cols; first += Dot::kColumns) {
      const int64_t count = cols - first < Dot::kColumns ? cols - first : Dot::kColumns;
      in.template prepare<typename Dot::Bytes, DotLayout::bytes>(x + first, count);
      while (matrix.groups[group].first + matrix.groups[group].count <= first) ++group;
      for (int64_t row = begin; row < end; ++row) {
        const float part = row_part<Dot>(team, row, group, first, count, in.input());
        y[row] = accumulate || first > 0 ? y[row] + part : part;
      }
    }
  }

 private:
  // Of `count` columns from `first` on, which `group` has.
  template <class Dot, class Team>
  JACKSCREW_ROW float row_part(const Team& team, int64_t row, int64_t group, int64_t first,
                               int64_t count, const typename Dot::Input& in) const {
    Dot dot;
    const uint8_t* of_row = matrix.codes + row * matrix.code_bytes;
    for (; group < matrix.group_count && matrix.groups[group].first < first + count; ++group) {
      const PackedGroup of = matrix.groups[group];
      const int64_t begin = of.first < first ? first : of.first;
      const int64_t end = of.first + of.count < first + count ? of.first + of.count : first + count;
      const uint8_t* from = of_row + of.offset + (begin - of.first) / 32 * 4 * of.bits;
      const float scale = matrix.scale(team, row, group);
      const int32_t zero = matrix.zero(row, group, of.bits);
      with_bits(of.bits, [&]<int kBits>() JACKSCREW_INLINE_LAMBDA {
        add<kBits>(dot, from, scale, zero, in, begin - first, end - first);
      });
    }
    return dot.total();
  }

  // Places [begin, end) of x, which one group has.
  template <int kBits, class Dot>
  JACKSCREW_ROW static void add(Dot& dot, const uint8_t* from, float scale, int32_t zero,
                                const typename Dot::Input& x, int64_t begin, int64_t end) {
    const auto zeros = Dot::filled(static_cast<int16_t>(zero));
    for (int64_t at = begin; at < end; at += 32, from += 4 * kBits) {
      dot.add_words(Dot::difference(Dot::template unpacked<kBits>(from), zeros),
                    scale * x.scales[at / 32], x.numbers + at);
    }
  }
};

// Brings x into the order of stored columns. Launched as one row.
struct PermuteColumns {
  const int32_t* columns;  // [cols]
  const float* from;       // [cols]
  float* to;               // [cols]
  int64_t cols;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    team.each(cols, [&](int64_t i) { to[i] = from[columns[i]]; });
  }
};
JACKSCREW_ROW_KERNEL(PermuteColumns)

using DecodePackedF16 = DecodePacked<F16Scale>;
using DecodePackedBf16 = DecodePacked<Bf16Scale>;
using DecodePackedF32 = DecodePacked<F32Scale>;
using DecodePackedSquared = DecodePacked<SquaredScale>;
using DotPackedF16 = DotPacked<F16Scale>;
using DotPackedBf16 = DotPacked<Bf16Scale>;
using DotPackedF32 = DotPacked<F32Scale>;
using DotPackedSquared = DotPacked<SquaredScale>;
JACKSCREW_ROW_KERNEL(DecodePackedF16)
JACKSCREW_ROW_KERNEL(DecodePackedBf16)
JACKSCREW_ROW_KERNEL(DecodePackedF32)
JACKSCREW_ROW_KERNEL(DecodePackedSquared)
JACKSCREW_ROW_KERNEL(DotPackedF16)
JACKSCREW_ROW_KERNEL(DotPackedBf16)
JACKSCREW_ROW_KERNEL(DotPackedF32)
JACKSCREW_ROW_KERNEL(DotPackedSquared)

}  // namespace jackscrew
