#include "quant/fp8.h"

#include "base/error.h"
#include "quant/fp8.rows.h"
#include "quant/part_layout.h"

namespace jackscrew {

namespace {

class Fp8Format : public Format {
 public:
  explicit Fp8Format(const Fp8Layout& layout) : layout_(layout) {}

  const char* name() const override { return "fp8"; }

  int64_t storage_bytes(int64_t rows, int64_t cols) const override {
    if (rows <= 0 || cols <= 0) {
      fail(ErrorKind::model, "a matrix [{}, {}] cannot be stored as {}", rows, cols, name());
    }
    return layout_.scale == PackedScale::f32 ? place<F32Scale>(nullptr, rows, cols).bytes
                                             : place<F16Scale>(nullptr, rows, cols).bytes;
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena&) const override {
    with_scale([&]<class Scale>(Scale) {
      ops.launch(DotFp8<Scale>{matrix_of<Scale>(storage), x.data<float>(), y.data<float>(),
                               accumulate == Accumulate::yes},
                 y.cols());
    });
  }

  bool for_linears_only() const override { return true; }

 private:
  template <class Scale>
  struct Placed {
    Fp8Matrix<Scale> matrix;
    int64_t bytes;  // of all parts
  };

  template <class Body>
  void with_scale(const Body& body) const {
    switch (layout_.scale) {
      case PackedScale::f16:
        return body(F16Scale{});
      case PackedScale::bf16:
        return body(Bf16Scale{});
      default:
        return body(F32Scale{});
    }
  }

  template <class Scale>
  Placed<Scale> place(void* base, int64_t rows, int64_t cols) const {
    const int64_t scale_cols = ceil_div(cols, layout_.block_cols);
    PartLayout parts(base);
    Fp8Matrix<Scale> matrix{};
    matrix.codes = parts.add<uint8_t>(checked_mul(rows, cols));
    matrix.scales = parts.add<typename Scale::Stored>(
        checked_mul(ceil_div(rows, layout_.block_rows), scale_cols));
    matrix.cols = cols;
    matrix.block_rows = layout_.block_rows;
    matrix.block_cols = layout_.block_cols;
    matrix.scale_cols = scale_cols;
    return {matrix, parts.bytes()};
  }

  template <class Scale>
  Fp8Matrix<Scale> matrix_of(const Storage& storage) const {
    return place<Scale>(storage.bytes.raw(), storage.rows, storage.cols).matrix;
  }

  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    with_scale([&]<class Scale>(Scale) {
      ops.launch(DecodeFp8<Scale>{matrix_of<Scale>(storage), rows.indices, out.raw(), rows.first,
                                  out.row_stride(), out.dtype() == DType::bf16},
                 rows.count);
    });
  }

  Fp8Layout layout_;
};

}  // namespace

FormatPointer make_fp8_format(const Fp8Layout& layout) {
  return std::make_shared<const Fp8Format>(layout);
}

}  // namespace jackscrew
