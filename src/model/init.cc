#include "model/init.h"

#include <algorithm>

#include "model/init.rows.h"

namespace jackscrew {

void init_weight(Ops& ops, const ModelConfig& config, uint64_t seed, const WeightInfo& info,
                 Weight& weight, Arena& staging) {
  const bool norm = info.kind == WeightKind::norm;
  const int64_t step = std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(DType::f32)));
  const Arena::Frame frame(staging);
  const Tensor panel = staging.tensor(DType::f32, {step, weight.cols()});
  for (int64_t begin = 0; begin < weight.rows(); begin += step) {
    const Tensor part = panel.rows(0, std::min(step, weight.rows() - begin));
    ops.launch(
        NormalInit{part.data<float>(), seed, weight.cols(), begin, name_hash(weight.name().c_str()),
                   norm ? 1.0f : 0.0f, norm ? 0.0f : static_cast<float>(config.initializer_range)},
        part.rows());
    weight.format().encode_rows(ops, part, weight.storage(), begin);
  }
}

}  // namespace jackscrew
