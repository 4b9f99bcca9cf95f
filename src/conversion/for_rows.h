// Rows shared among threads.
#pragma once

#include <algorithm>

#include "base/checked.h"
#include "base/parallel.h"

namespace jackscrew {

// Calls body(row) for rows [0, rows).
template <class Body>
void for_rows(int threads, int64_t rows, const Body& body) {
  // Rows of one task: enough to be worth handing out, few enough to share among threads.
  constexpr int64_t kTaskRows = 16;
  parallel_for(threads, ceil_div(rows, kTaskRows), [&](int64_t task, int) {
    const int64_t last = std::min(rows, (task + 1) * kTaskRows);
    for (int64_t row = task * kTaskRows; row < last; ++row) body(row);
  });
}

}  // namespace jackscrew
