#include "model/init.h"

#include <algorithm>

#include "model/init.rows.h"

namespace jackscrew {

void init_rows(Ops& ops, const ModelConfig& config, uint64_t seed, const WeightSpec& weight,
               int64_t first_row, const Tensor& out) {
  ops.launch(
      NormalInit{out.data<float>(), seed, out.cols(), first_row, name_hash(weight.name.c_str()),
                 weight.kind == WeightKind::norm ? 1.0f : 0.0f,
                 weight.is_vector() ? 0.0f : static_cast<float>(config.initializer_range)},
      out.rows());
}

void init_weight(Ops& ops, const ModelConfig& config, uint64_t seed, Weight& weight,
                 Arena& staging) {
  const Arena::Frame frame(staging);
  const Tensor panel = staging.tensor(
      DType::f32, {std::min(weight.rows(), encode_panel_rows(weight.cols())), weight.cols()});
  const auto source = [&](int64_t begin, int64_t end) {
    const Tensor part = panel.rows(0, end - begin);
    init_rows(ops, config, seed, weight.spec(), begin, part);
    return part;
  };
  weight.format().encode(ops, source, weight.storage(), {}, staging);
}

}  // namespace jackscrew
