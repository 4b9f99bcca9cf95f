#include "optim/clip.h"

#include "kernels/rows/loss.rows.h"

namespace jackscrew {

GradientNorm::GradientNorm(Memory& memory, const std::vector<int64_t>& sizes) {
  int64_t chunks = 0;
  for (const int64_t size : sizes) chunks += ceil_div(size, SquaredNormChunks::kChunk);
  partial_ = OwnedTensor(memory, Purpose::workspace, DType::f64, {chunks});
}

void GradientNorm::compute(Context& context) const {
  int64_t first = 0;
  for (const Tensor& g : gradients_) {
    const int64_t chunks = ceil_div(g.size(), SquaredNormChunks::kChunk);
    const Tensor part = partial_.view().columns(first, first + chunks);
    context.ops.launch(SquaredNormChunks{g.data<float>(), part.data<double>(), g.size()}, chunks);
    first += chunks;
  }
  context.ops.launch(FinishNorm{partial_.view().data<double>(), context.scalars, first}, 1);
}

}  // namespace jackscrew
