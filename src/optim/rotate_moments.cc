#include "optim/rotate_moments.h"

#include "optim/rotate_moments.rows.h"

namespace jackscrew {

Tensor rotated_moment(Context& context, const Tensor& moment, const Tensor& c, Moment order) {
  const Tensor out = context.scratch.tensor(DType::f32, {moment.rows(), moment.cols()});
  if (order == Moment::first) {
    context.ops.gemm(moment, Transpose::no, c, Transpose::no, out, Accumulate::no);
    return out;
  }
  const Arena::Frame frame(context.scratch);
  const Tensor squares = context.scratch.tensor(DType::f32, {c.rows(), c.cols()});
  context.ops.launch(SquareRows{c.data<float>(), squares.data<float>(), c.cols()}, c.rows());
  context.ops.gemm(moment, Transpose::no, squares, Transpose::no, out, Accumulate::no);
  context.ops.launch(AddShareOfMean{moment.data<float>(), out.data<float>(), out.cols()},
                     out.rows());
  return out;
}

}  // namespace jackscrew
