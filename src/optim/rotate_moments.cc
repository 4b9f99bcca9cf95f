#include "optim/rotate_moments.h"

#include "optim/rotate_moments.rows.h"

namespace jackscrew {

Tensor rotated_moment(Context& context, const Tensor& moment, const Tensor& basis_change,
                      Moment order) {
  const Tensor out = context.scratch.tensor(DType::f32, {moment.rows(), moment.cols()});
  if (order == Moment::first) {
    context.ops.gemm(moment, Transpose::no, basis_change, Transpose::no, out, Accumulate::no);
    return out;
  }
  const Arena::Frame frame(context.scratch);
  const Tensor squares =
      context.scratch.tensor(DType::f32, {basis_change.rows(), basis_change.cols()});
  context.ops.launch(
      SquareRows{basis_change.data<float>(), squares.data<float>(), basis_change.cols()},
      basis_change.rows());
  context.ops.gemm(moment, Transpose::no, squares, Transpose::no, out, Accumulate::no);
  context.ops.launch(AddShareOfMean{moment.data<float>(), out.data<float>(), out.cols()},
                     out.rows());
  return out;
}

}  // namespace jackscrew
