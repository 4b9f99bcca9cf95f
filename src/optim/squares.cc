#include "optim/squares.h"

#include <numeric>
#include <vector>

#include "kernels/rows/loss.rows.h"

namespace jackscrew {

int64_t chunks_of_squares(int64_t size) {
  return ceil_div(size, SquaredNormChunks::kChunk);
}

void sum_squares(Ops& ops, const Tensor& values, const Tensor& sums) {
  ops.launch(SquaredNormChunks{values.data<float>(), sums.data<double>(), values.size()},
             sums.size());
}

double squared_norm(Context& context, const Tensor& values) {
  const Arena::Frame frame(context.scratch);
  const Tensor sums = context.scratch.tensor(DType::f64, {chunks_of_squares(values.size())});
  sum_squares(context.ops, values, sums);
  std::vector<double> on_host(static_cast<size_t>(sums.size()));
  context.ops.copy(Tensor(on_host.data(), DType::f64, {sums.size()}), sums);
  return context.ops.plans_only() ? 0.0 : std::accumulate(on_host.begin(), on_host.end(), 0.0);
}

}  // namespace jackscrew
