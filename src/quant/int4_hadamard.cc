#include "quant/int4_hadamard.h"

#include "base/error.h"
#include "quant/group_format.h"
#include "quant/int4_hadamard.rows.h"

namespace jackscrew {

namespace {

class Int4HadamardFormat : public GroupFormat<Int4HadamardCodec> {
 public:
  Int4HadamardFormat() : GroupFormat("int4_hadamard") {}

  int64_t storage_bytes(int64_t rows, int64_t cols) const override {
    if (cols % 2 != 0) {
      fail(ErrorKind::model, "a matrix [{}, {}] cannot be stored as {}: its width is odd", rows,
           cols, name());
    }
    return GroupFormat::storage_bytes(rows, cols);
  }

  void encode(Ops& ops, const RowSource& source, const Storage& storage, const Rounding& rounding,
              Arena& scratch) const override {
    const auto matrix = matrix_of(storage);
    const int64_t cols = storage.cols;
    const Arena::Frame frame(scratch);
    const Tensor rotated =
        scratch.tensor(DType::f32, {std::min(storage.rows, encode_panel_rows(cols)), cols});
    for_encode_panels(source, storage, [&](const Tensor& panel, int64_t first_row) {
      ops.launch(RotateToSteps{panel.data<float>(), rotated.data<float>(),
                               matrix.codec.row_scales + first_row, cols,
                               largest_hadamard_block(cols), rounding},
                 panel.rows());
      ops.launch(EncodeInt4Hadamard{matrix.codec, matrix.layout, rotated.data<float>(), first_row,
                                    panel.size(), rounding},
                 panel.rows());
    });
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena& scratch) const override {
    const Arena::Frame frame(scratch);
    const Tensor rotated = scratch.tensor(DType::f32, {1, x.cols()});
    ops.launch(RotateRows{.from = x.raw(),
                          .to = rotated.raw(),
                          .scales = nullptr,
                          .indices = nullptr,
                          .first_row = 0,
                          .width = x.cols(),
                          .from_stride = x.cols(),
                          .to_stride = x.cols(),
                          .block = largest_hadamard_block(x.cols()),
                          .is_bf16 = false},
               1);
    GroupFormat::multiply(ops, storage, rotated, y, accumulate, scratch);
  }

  Int4Rows int4_rows(const Storage& storage) const override {
    const auto matrix = matrix_of(storage);
    return {Tensor(matrix.codec.codes, DType::u8, {storage.rows, storage.cols / 2}),
            Tensor(matrix.codec.row_scales, DType::f32, {storage.rows, 1}),
            largest_hadamard_block(storage.cols)};
  }

 private:
  GroupedMatrix<Int4HadamardCodec> place(void* base, int64_t rows, int64_t cols) const override {
    PartLayout parts(base);
    Int4HadamardCodec codec{};
    codec.codes = parts.add<uint8_t>(checked_mul(rows, cols / 2));
    codec.row_scales = parts.add<float>(rows);
    return {codec, {cols, cols, 1}, parts.bytes()};
  }

  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    GroupFormat::decode_rows(ops, storage, rows, out);
    ops.launch(RotateRows{.from = out.raw(),
                          .to = out.raw(),
                          .scales = matrix_of(storage).codec.row_scales,
                          .indices = rows.indices,
                          .first_row = rows.first,
                          .width = storage.cols,
                          .from_stride = out.row_stride(),
                          .to_stride = out.row_stride(),
                          .block = largest_hadamard_block(storage.cols),
                          .is_bf16 = out.dtype() == DType::bf16},
               rows.count);
  }
};

}  // namespace

const Format& int4_hadamard_format() {
  static const Int4HadamardFormat kFormat;
  return kFormat;
}

}  // namespace jackscrew
