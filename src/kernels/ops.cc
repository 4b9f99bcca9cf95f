#include "kernels/ops.h"

#include "kernels/row_operands.h"
#include "kernels/rows/model.rows.h"

namespace jackscrew {

void Ops::gemm_scaled(float scale, const Tensor& a, Transpose transpose_a, const Tensor& b,
                      Transpose transpose_b, const Tensor& c, Arena& scratch) {
  const Arena::Frame frame(scratch);
  const Tensor sums =
      c.dtype() == DType::f32 ? c : scratch.tensor(DType::f32, {c.rows(), c.cols()});
  gemm(a, transpose_a, b, transpose_b, sums, Accumulate::no);
  const LongRows rows = long_rows(c.rows(), c.cols());
  with_activation(c.dtype(), [&]<class Activation>(Activation) {
    launch(ScaleRows<Activation>{sums.data<float>(), c.data<Activation>(), rows.width, scale},
           rows.rows);
  });
}

}  // namespace jackscrew
