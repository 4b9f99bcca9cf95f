// nf4: blocks of 64 elements of the row-major flattening, two codes in a byte, the even element in
// the high nibble. Value: absmax * number of the code. In nf4_double the absmax of a block is
// itself coded: nested absmax * map[code] + offset.
#pragma once

#include "quant/dynamic_map.h"
#include "quant/group_row.h"

namespace jackscrew {

// A kernel holds it among its arguments, as a DynamicMap.
struct Nf4Book {
  float values[16];      // ascending, from -1 to 1
  float thresholds[15];  // between them
};

// The value nearest to x.
JACKSCREW_ROW int32_t nf4_code(const Nf4Book& book, float x) {
  int32_t code = 0;
  for (int32_t i = 0; i < 15; ++i) code += x > book.thresholds[i] ? 1 : 0;
  return code;
}

// One of the two values around x, chosen by `uniform` of [0, 1) so that x is what is expected.
JACKSCREW_ROW int32_t nf4_code(const Nf4Book& book, float x, float uniform) {
  int32_t below = 0;
  for (int32_t i = 1; i < 15; ++i) below += x >= book.values[i] ? 1 : 0;
  const float gap = book.values[below + 1] - book.values[below];
  return below + (x - book.values[below] > uniform * gap ? 1 : 0);
}

struct Nf4Codec {
  static constexpr int64_t kNestedBlock = 256;  // absmax that are coded together

  Nf4Book book;
  uint8_t* codes;  // [ceil(elements / 2)]
  float* absmax;   // [blocks]; null: as follows
  DynamicMap map;
  uint8_t* absmax_codes;  // [blocks]
  float* nested_absmax;   // [ceil(blocks / kNestedBlock)]
  float* offset;          // [1]

  JACKSCREW_ROW float scale(int64_t block) const {
    if (absmax != nullptr) return absmax[block];
    const float nested = nested_absmax[block / kNestedBlock];
    const float product = nested * map.values[absmax_codes[block]];
    // bitsandbytes rounds the product before the sum. A choice keeps a compiler from fusing the
    // two.
    return (product == product ? product : nested) + *offset;
  }

  // The elements of one block before they are scaled: two(lane, i, value of i, value of i + 1) for
  // whole bytes, lanes being below 16, and one(i, value) for what is left on either side.
  template <class Team, class One, class Two>
  JACKSCREW_ROW void each_value(const Team& team, int64_t element, int64_t count, const One& one,
                                const Two& two) const {
    const int64_t first = element & 1;  // a lone odd element
    const int64_t pairs = (count - first) / 2;
    const uint8_t* bytes = codes + (element + first) / 2;
    if (first == 1) team.once([&] { one(0, book.values[bytes[-1] & 15]); });
    int64_t done = 0;
    for (; done + 16 <= pairs; done += 16) {
      const auto pair = team.sixteen(bytes + done);
      const auto even = team.lookup(book.values, pair, 4);
      const auto odd = team.lookup(book.values, pair, 0);
      team.each(16, [&](int64_t i) { two(i, first + 2 * (done + i), even[i], odd[i]); });
    }
    team.each(pairs - done, [&](int64_t i) {
      const uint8_t pair = bytes[done + i];
      two(i, first + 2 * (done + i), book.values[pair >> 4], book.values[pair & 15]);
    });
    if (first + 2 * pairs < count) {
      team.once([&] { one(count - 1, book.values[bytes[pairs] >> 4]); });
    }
  }

  template <class Team, class Store>
  JACKSCREW_ROW void decode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const Store& store) const {
    const float s = scale(group);
    each_value(
        team, element, count, [&](int64_t i, float value) { store(i, s * value); },
        [&](int64_t, int64_t i, float even, float odd) {
          store(i, s * even);
          store(i + 1, s * odd);
        });
  }

  template <class Team>
  JACKSCREW_ROW float dot(const Team& team, int64_t group, int64_t element, int64_t count,
                          const float* x) const {
    typename Team::template Sums<16> lanes;
    each_value(
        team, element, count, [&](int64_t i, float value) { lanes[0] += x[i] * value; },
        [&](int64_t lane, int64_t i, float even, float odd) {
          lanes[lane] += x[i] * even + x[i + 1] * odd;
        });
    return scale(group) * team.total(lanes);
  }

  // Writes the codes of all elements, code(i).
  template <class Team, class F>
  JACKSCREW_ROW static void put_pairs(const Team& team, int64_t count, uint8_t* to, const F& code) {
    const int64_t pairs = count / 2;
    put_bytes(team, to, pairs, [&](int64_t i) { return code(2 * i) << 4 | code(2 * i + 1); });
    // A last odd element is paired with the code of 0.
    if (count > 2 * pairs) {
      team.once([&] { to[pairs] = static_cast<uint8_t>(code(count - 1) << 4 | 7); });
    }
  }

  template <class Team>
  JACKSCREW_ROW void encode(const Team& team, int64_t group, int64_t element, int64_t count,
                            const float* from, const Rounding& rounding) const {
    const float largest = largest_magnitude(team, from, count);
    team.once([&] { absmax[group] = largest; });
    const float inverse = largest > 0.0f ? row_min(1.0f / largest, 3.4028235e38f) : 0.0f;
    uint8_t* to = codes + element / 2;
    if (rounding.stochastic) {
      const RandomStream random = rounding_stream(rounding);
      put_pairs(team, count, to, [&](int64_t i) {
        return nf4_code(book, from[i] * inverse,
                        random.uniform(static_cast<uint64_t>(element + i)));
      });
    } else {
      put_pairs(team, count, to, [&](int64_t i) { return nf4_code(book, from[i] * inverse); });
    }
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
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const double sum =
        team.sum_f64(count, [&](int64_t i) { return static_cast<double>(absmax[i]); });
    const float mean = static_cast<float>(sum / static_cast<double>(count));
    team.each(count, [&](int64_t i) { absmax[i] -= mean; });
    team.once([&] { *offset = mean; });
  }
};
JACKSCREW_ROW_KERNEL(Nf4Centre)

}  // namespace jackscrew
