// Operands of Team::elementwise: rows that a loop reads, writes or updates, element by element. The
// loop has values of float, whatever the elements are.
#pragma once

#include <cstdint>

#include "base/half.h"

namespace jackscrew {

enum class Access { read, write, update };

template <class Stored, Access kAccess>
struct RowOperand {
  using Element = Stored;
  static constexpr bool kReads = kAccess != Access::write;
  static constexpr bool kWrites = kAccess != Access::read;
  Stored* at;
};

template <class Element>
JACKSCREW_INLINE RowOperand<const Element, Access::read> reads(const Element* from) {
  return {from};
}
template <class Element>
JACKSCREW_INLINE RowOperand<Element, Access::write> writes(Element* to) {
  return {to};
}
template <class Element>
JACKSCREW_INLINE RowOperand<Element, Access::update> updates(Element* at) {
  return {at};
}

// The same elements as fewer and longer rows, for rows that follow one another without gaps: short
// ones would leave most of a GPU's block of threads without work.
struct LongRows {
  int64_t rows, width;
};
inline LongRows long_rows(int64_t rows, int64_t width) {
  constexpr int64_t kWidth = 1024;  // four elements for each thread
  while (rows > 1 && rows % 2 == 0 && width < kWidth) {
    rows /= 2;
    width *= 2;
  }
  return {rows, width};
}

}  // namespace jackscrew
