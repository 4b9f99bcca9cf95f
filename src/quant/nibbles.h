// Codes of four bits, two in a byte, the even element in the high nibble: what codecs of groups
// (see group_row.h) share that have them. Groups begin with whole bytes.
#pragma once

#include "quant/group_row.h"

namespace jackscrew {

// What the table says of the elements of one group: two(lane, i, value of i, value of i + 1) for
// whole bytes, lanes being below 16, and one(i, value) for what is left on either side.
template <class Team, class One, class Two>
JACKSCREW_ROW void each_nibble_value(const Team& team, const uint8_t* codes,
                                     const float (&table)[16], int64_t element, int64_t count,
                                     const One& one, const Two& two) {
  const int64_t first = element & 1;  // a lone odd element
  const int64_t pairs = (count - first) / 2;
  const uint8_t* bytes = codes + (element + first) / 2;
  if (first == 1) team.once([&] { one(0, table[bytes[-1] & 15]); });
  int64_t done = 0;
  for (; done + 16 <= pairs; done += 16) {
    const auto pair = team.sixteen(bytes + done);
    const auto even = team.lookup(table, pair, 4);
    const auto odd = team.lookup(table, pair, 0);
    team.each(16, [&](int64_t i) { two(i, first + 2 * (done + i), even[i], odd[i]); });
  }
  team.each(pairs - done, [&](int64_t i) {
    const uint8_t pair = bytes[done + i];
    two(i, first + 2 * (done + i), table[pair >> 4], table[pair & 15]);
  });
  if (first + 2 * pairs < count) {
    team.once([&] { one(count - 1, table[bytes[pairs] >> 4]); });
  }
}

// Calls f(i, value of element i) for the elements of one group.
template <class Team, class F>
JACKSCREW_ROW void each_nibble_value(const Team& team, const uint8_t* codes,
                                     const float (&table)[16], int64_t element, int64_t count,
                                     const F& f) {
  each_nibble_value(team, codes, table, element, count, f,
                    [&](int64_t, int64_t i, float even, float odd) {
                      f(i, even);
                      f(i + 1, odd);
                    });
}

// Calls put(i, bits) for eight codes, which begin at a multiple of four bytes: code i is the lowest
// four bits, beside which there are others.
template <class Put>
JACKSCREW_ROW void each_of_eight_nibbles(const uint8_t* bytes, const Put& put) {
  const uint32_t word = *reinterpret_cast<const uint32_t*>(bytes);
  for (uint32_t i = 0; i < 8; ++i) put(i, word >> (8 * (i / 2) + 4 * (1 - i % 2)));
}

// The sum of x[i] times the value of element i.
template <class Team>
JACKSCREW_ROW float dot_nibbles(const Team& team, const uint8_t* codes, const float (&table)[16],
                                int64_t element, int64_t count, const float* x) {
  typename Team::template Sums<16> lanes;
  each_nibble_value(
      team, codes, table, element, count, [&](int64_t i, float value) { lanes[0] += x[i] * value; },
      [&](int64_t lane, int64_t i, float even, float odd) {
        lanes[lane] += x[i] * even + x[i + 1] * odd;
      });
  return team.total(lanes);
}

// Writes the codes of a whole group: code(i), or code(i, uniform) for a random number in [0, 1) of
// each element. A last odd element is paired with `zero`, the code of 0.
template <class Team, class Code>
JACKSCREW_ROW void put_nibbles(const Team& team, const GroupRounding& rounding, int64_t element,
                               int64_t count, uint8_t* codes, int32_t zero, const Code& code) {
  uint8_t* to = codes + element / 2;
  const int64_t pairs = count / 2;
  const auto put = [&](const auto& of) {
    put_bytes(team, to, pairs, [&](int64_t i) { return of(2 * i) << 4 | of(2 * i + 1); });
    if (count > 2 * pairs) {
      team.once([&] { to[pairs] = static_cast<uint8_t>(of(count - 1) << 4 | zero); });
    }
  };
  if (!rounding.of_all.stochastic) return put(code);
  const RandomStream random = rounding_stream(rounding.of_all);
  put([&](int64_t i) { return code(i, random.uniform(static_cast<uint64_t>(element + i))); });
}

}  // namespace jackscrew
