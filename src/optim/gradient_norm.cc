#include "optim/gradient_norm.h"

#include "kernels/rows/loss.rows.h"
#include "optim/squares.h"

namespace jackscrew {

GradientNorm::GradientNorm(Memory& memory, const std::vector<int64_t>& sizes) {
  if (sizes.empty()) return;
  int64_t chunks = 0;
  for (const int64_t size : sizes) chunks += chunks_of_squares(size);
  partial_ = OwnedTensor(memory, Purpose::workspace, DType::f64, {chunks});
  sums_ = OwnedTensor(memory, Purpose::workspace, DType::f64, {std::ssize(sizes)});
}

void GradientNorm::measure(Context& context) const {
  if (gradients_.empty()) return;
  context.ops.in_batches([&] {
    int64_t number = 0, first = 0;
    for (const Tensor& g : gradients_) {
      const int64_t end = first + chunks_of_squares(g.size());
      const Tensor partial = partial_.view().columns(first, end);
      const Tensor sum = sums_.view().columns(number, number + 1);
      context.ops.begin_part();
      sum_squares(context.ops, g, partial);
      context.ops.launch(SumOf{partial.data<double>(), sum.data<double>(), partial.size()}, 1);
      first = end;
      ++number;
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
