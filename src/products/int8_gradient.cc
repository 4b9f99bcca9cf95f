#include "products/int8_gradient.h"

#include "products/int8.rows.h"
#include "products/int8_gradient.rows.h"

namespace jackscrew {

namespace {

// The largest code of the second operand of an int8 product, where any is allowed.
constexpr int32_t kSecondLimit = 127;

// The number of rows of kernels whose row is a group of tokens by a block of columns.
int64_t column_tiles(const Tensor& matrix) {
  return ceil_div(matrix.rows(), kInt8Group) * ceil_div(matrix.cols(), kInt8Group);
}

// Whole words, and no stride at which rows share cache sets: see int8_row_bytes().
int64_t transposed_stride(int64_t tokens) {
  const int64_t bytes = round_up(tokens, kInt8Group);
  return bytes % 1024 == 0 ? bytes + kInt8Group : bytes;
}

}  // namespace

Int8Rows take_groups(Arena& scratch, int64_t rows, int64_t cols) {
  return {scratch.tensor(DType::i8, {rows, cols}),
          scratch.tensor(DType::f32, {rows, ceil_div(cols, kInt8Group)})};
}

Int8Rows gradient_of_rows(const Gradient& g, const Tensor& column_scales, int64_t begin,
                          int64_t end, int32_t limit) {
  const Context& context = g.context();
  const Tensor part = g.dy.columns(begin, end);
  const Int8Rows to = take_groups(context.scratch, part.rows(), part.cols());
  context.ops.launch(
      QuantizeGradientGroups{part.data<float>(), column_scales.data<float>(),
                             to.codes.data<int8_t>(), to.scales.data<float>(), context.scalars,
                             part.cols(), part.row_stride(), to.scales.cols(), context.rows,
                             div_exact(begin, kInt8Group), ceil_div(g.dy.cols(), kInt8Group),
                             name_hash(g.weight().name().c_str()), limit},
      to.scales.size());
  return to;
}

Int8Rows gradient_of_columns(const Gradient& g, const Tensor& token_scales, int32_t limit) {
  const Context& context = g.context();
  const int64_t tokens = g.dy.rows();
  const int64_t stride = transposed_stride(tokens);
  const Tensor padded = context.scratch.tensor(DType::i8, {g.dy.cols(), stride});
  const Int8Rows to{
      padded.columns(0, tokens),
      context.scratch.tensor(DType::f32, {g.dy.cols(), ceil_div(tokens, kInt8Group)})};
  context.ops.launch(
      QuantizeGradientColumns{
          g.dy.data<float>(), token_scales.empty() ? nullptr : token_scales.data<float>(),
          to.codes.data<int8_t>(), to.scales.data<float>(), context.scalars, tokens, g.dy.cols(),
          g.dy.row_stride(), token_scales.row_stride(), stride, context.rows,
          name_hash((g.weight().name() + " of columns").c_str()), limit},
      column_tiles(g.dy));
  return to;
}

Int8Rows columns_in_bytes(const Context& context, const Tensor& x) {
  const int64_t tokens = x.rows();
  const int64_t width = x.cols();
  const Int8Rows to{context.scratch.tensor(DType::i8, {tokens, width}),
                    context.scratch.tensor(DType::f32, {width})};
  const Arena::Frame frame(context.scratch);
  const Tensor maxima = context.scratch.tensor(DType::f32, {ceil_div(tokens, kInt8Group), width});
  context.ops.launch(
      ColumnMaxima{x.data<float>(), maxima.data<float>(), tokens, width, x.row_stride()},
      column_tiles(x));
  context.ops.launch(
      QuantizeColumns{x.data<float>(), maxima.data<float>(), to.codes.data<int8_t>(),
                      to.scales.data<float>(), tokens, width, x.row_stride(), kSecondLimit},
      column_tiles(x));
  return to;
}

}  // namespace jackscrew
