#include "optim/finite.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/rows/loss.rows.h"

namespace jackscrew {

bool all_finite(Context& context, const Tensor& values) {
  const int64_t chunks = ceil_div(values.size(), SquaredNormChunks::kChunk);
  const Arena::Frame frame(context.scratch);
  const Tensor sums = context.scratch.tensor(DType::f64, {chunks});
  // The squares of 16384 floats, the largest included, do not overflow a double.
  context.ops.launch(SquaredNormChunks{values.data<float>(), sums.data<double>(), values.size()},
                     chunks);
  if (context.ops.plans_only()) return true;
  std::vector<double> on_host(static_cast<size_t>(chunks));
  context.ops.copy(Tensor(on_host.data(), DType::f64, {chunks}), sums);
  return std::all_of(on_host.begin(), on_host.end(), [](double sum) { return std::isfinite(sum); });
}

}  // namespace jackscrew
