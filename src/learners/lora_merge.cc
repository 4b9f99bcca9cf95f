#include "learners/lora_merge.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace jackscrew {

namespace {

// A Tensor's data is mutable because it may be a target; products only read their operands, so
// casting const away is safe.
Tensor host_tensor(std::span<const float> values, int64_t rows, int64_t cols) {
  return {const_cast<float*>(values.data()), DType::f32, {rows, cols}};
}

// rows += scale B A, for rows [begin, begin + n) of B [out, rank].
void add_product(Ops& ops, const LoraShape& shape, std::span<const float> a,
                 std::span<const float> b, int64_t begin, const Tensor& rows) {
  const auto part = b.subspan(static_cast<size_t>(begin * shape.rank),
                              static_cast<size_t>(rows.rows() * shape.rank));
  std::vector<float> scaled(part.size());
  std::transform(part.begin(), part.end(), scaled.begin(), [&](float value) {
    return static_cast<float>(shape.scale * static_cast<double>(value));
  });
  ops.gemm(host_tensor(scaled, rows.rows(), shape.rank), Transpose::no,
           host_tensor(a, shape.rank, rows.cols()), Transpose::no, rows, Accumulate::yes);
}

// Rescales every row to its length; a row of zeros stays zero, as in DoraSlot.
void set_lengths(std::span<const float> lengths, const Tensor& rows) {
  for (int64_t i = 0; i < rows.rows(); ++i) {
    const std::span<float> row(rows.data<float>() + i * rows.row_stride(),
                               static_cast<size_t>(rows.cols()));
    double square = 0.0;
    for (const float x : row) square += static_cast<double>(x) * static_cast<double>(x);
    const double length = static_cast<double>(lengths[static_cast<size_t>(i)]);
    const double factor = square > 0.0 ? length / std::sqrt(square) : 0.0;
    for (float& x : row) x = static_cast<float>(static_cast<double>(x) * factor);
  }
}

}  // namespace

WeightMerge lora_merge(const LoraSettings& settings, const WeightSpec& weight,
                       const AdapterValues& tensors) {
  if (settings.trains_whole(weight)) {
    const auto values = tensors(weight.name, {weight.rows, weight.cols});
    return [values](Ops&, int64_t begin, const Tensor& rows) {
      std::copy_n(values.begin() + begin * rows.cols(), rows.size(), rows.data<float>());
    };
  }
  const std::optional<LoraShape> shape = settings.shape_of(weight);
  if (!shape) return {};
  const std::string path = weight.path();
  const auto a = tensors(path + ".lora_A.weight", {shape->rank, weight.cols});
  const auto b = tensors(path + ".lora_B.weight", {weight.rows, shape->rank});
  std::span<const float> lengths;  // [out], with DoRA alone
  if (settings.use_dora()) lengths = tensors(path + ".lora_magnitude_vector", {weight.rows});
  return [=, shape = *shape](Ops& ops, int64_t begin, const Tensor& rows) {
    add_product(ops, shape, a, b, begin, rows);
    if (!lengths.empty()) set_lengths(lengths.subspan(static_cast<size_t>(begin)), rows);
  };
}

}  // namespace jackscrew
