// The largest of errors.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

namespace jackscrew {

// The larger of the two; infinite where `error` is not a number, which std::max() would pass over.
template <class Number>
Number worse(Number worst, Number error) {
  return std::isnan(error) ? std::numeric_limits<Number>::infinity() : std::max(worst, error);
}

}  // namespace jackscrew
