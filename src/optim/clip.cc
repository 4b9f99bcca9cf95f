#include "optim/clip.h"

#include "kernels/rows/loss.rows.h"

namespace jackscrew {

GradientNorm::GradientNorm(Memory& memory, const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return;
  int64_t chunks = 0;
  for (const int64_t size : sizes) chunks += ceil_div(size, SquaredNormChunks::kChunk);
  partial_ = OwnedTensor(memory, Purpose::workspace, DType::f64, {chunks});
  sums_ = OwnedTensor(memory, Purpose::workspace, DType::f64, {std::ssize(sizes)});
}

void GradientNorm::measure(Context& context) const {
  if (gradients_.empty()) return;
  auto* partial = partial_.view().data<double>();
  auto* sum = sums_.view().data<double>();
  context.ops.in_batches([&] {
    for (const Tensor& g : gradients_) {
      const int64_t chunks = ceil_div(g.size(), SquaredNormChunks::kChunk);
      context.ops.begin_part();
      context.ops.launch(SquaredNormChunks{g.data<float>(), partial, g.size()}, chunks);
      context.ops.launch(SumOf{partial, sum, chunks}, 1);
      if (sum == nullptr) continue;  // on the plan device there are none
      partial += chunks;
      ++sum;
    }
  });
}

void GradientNorm::add(Context& context) const {
  if (gradients_.empty()) return;
  context.ops.launch(
      AddSquares{sums_.view().data<double>(), context.scalars, std::ssize(gradients_)}, 1);
}

void GradientNorm::finish(Context& context) const {
  context.ops.launch(FinishNorm{context.scalars}, 1);
}

}  // namespace jackscrew
