// Row kernels of the rotary learner.
#pragma once

#include "kernels/row_kernel.h"

namespace jackscrew {

// total += sum of parts. One row.
struct AddTotal {
  const double* parts;  // [count]
  double* total;        // [1]
  int64_t count;
  template <class Team>
  JACKSCREW_ROW void operator()(const Team& team, int64_t) const {
    const double sum = team.sum_f64(count, [&](int64_t i) { return parts[i]; });
    team.once([&] { *total += sum; });
  }
};
JACKSCREW_ROW_KERNEL(AddTotal)

}  // namespace jackscrew
