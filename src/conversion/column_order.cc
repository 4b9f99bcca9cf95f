#include "conversion/column_order.h"

#include "base/parallel.h"

namespace jackscrew {

void reorder_columns(Ops& ops, const Tensor& w, const std::vector<int32_t>& order, Reorder way) {
  if (order.empty()) return;
  const int64_t cols = w.cols();
  parallel_for(ops.threads(), w.rows(), [&](int64_t row, int) {
    float* values = w.data<float>() + row * cols;
    const std::vector<float> old(values, values + cols);
    for (int64_t i = 0; i < cols; ++i) {
      const auto from = static_cast<size_t>(order[static_cast<size_t>(i)]);
      way == Reorder::back ? values[from] = old[static_cast<size_t>(i)] : values[i] = old[from];
    }
  });
}

std::vector<float> column_costs(const Tensor& u, int64_t cols) {
  std::vector<float> costs(static_cast<size_t>(cols), 1.0f);
  for (int64_t k = 0; !u.empty() && k < cols; ++k) {
    const float diagonal = u.data<float>()[k * (cols + 1)];
    costs[static_cast<size_t>(k)] = 1.0f / (diagonal * diagonal);
  }
  return costs;
}

void propagate_errors(Ops& ops, const Tensor& errors, const Tensor& u, const Tensor& w,
                      int64_t begin, int64_t end) {
  if (end == w.cols()) return;
  ops.gemm(errors.columns(0, end - begin), Transpose::no, u.rows(begin, end).columns(end, w.cols()),
           Transpose::no, w.columns(end, w.cols()), Accumulate::yes);
}

}  // namespace jackscrew
