#include "conversion/column_order.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
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

bool all_finite(const Tensor& w) {
  const float* values = w.data<float>();
  return std::all_of(values, values + w.size(), [](float value) { return std::isfinite(value); });
}

void check_finite(const WeightSpec& weight, const Tensor& w) {
  if (all_finite(w)) return;
  throw Error(ErrorKind::non_finite, fmt::format("{} has values that are not finite", weight.name),
              "the file is damaged, or its training went wrong");
}

void fail_beyond_f16(const WeightSpec& weight, const char* layout) {
  throw Error(
      ErrorKind::model,
      fmt::format("{} has values beyond those of f16, which {} decodes to", weight.name, layout),
      "such a model cannot be rounded so; its training may have gone wrong");
}

}  // namespace jackscrew
