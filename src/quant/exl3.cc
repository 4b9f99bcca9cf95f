#include "quant/exl3.h"

#include "base/error.h"
#include "quant/exl3.rows.h"
#include "quant/part_layout.h"

namespace jackscrew {

namespace {

class Exl3Format : public Format {
 public:
  explicit Exl3Format(const Exl3Layout& layout)
      : name_(fmt::format("exl3_{}bit", layout.bits)), layout_(layout) {}

  const char* name() const override { return name_.c_str(); }

  int64_t storage_bytes(int64_t rows, int64_t cols) const override {
    if (rows <= layout_.rows - kExl3Block || rows > layout_.rows || cols != layout_.cols) {
      fail(ErrorKind::model, "a matrix [{}, {}] in EXL3 of one [{}, {}]", rows, cols, layout_.rows,
           layout_.cols);
    }
    return place(nullptr).bytes;
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena& scratch) const override {
    const Arena::Frame frame(scratch);
    const Exl3Matrix matrix = place(storage.bytes.raw()).matrix;
    const Tensor transformed_x = scratch.tensor(DType::f32, {1, x.cols()});
    ops.launch(
        TransformExl3Input{x.data<float>(), matrix.input_scales, transformed_x.data<float>()},
        x.cols() / kExl3Block);
    with_book([&]<class Book>(Book) {
      ops.launch(DotExl3<Book>{matrix, transformed_x.data<float>(), y.data<float>(), storage.rows,
                               accumulate == Accumulate::yes},
                 layout_.rows / kExl3Block);
    });
  }

  bool for_linears_only() const override { return true; }

 private:
  struct Placed {
    Exl3Matrix matrix;
    int64_t bytes;  // of all parts
  };

  Placed place(void* base) const {
    PartLayout parts(base);
    Exl3Matrix matrix{};
    matrix.words =
        parts.add<uint32_t>(checked_mul(layout_.rows / 16, layout_.cols / 16) * 8 * layout_.bits);
    matrix.input_scales = parts.add<f16>(layout_.cols);
    matrix.output_scales = parts.add<f16>(layout_.rows);
    matrix.rows = layout_.rows;
    matrix.cols = layout_.cols;
    matrix.bits = layout_.bits;
    return {matrix, parts.bytes()};
  }

  template <class Body>
  void with_book(const Body& body) const {
    switch (layout_.codebook) {
      case Exl3Codebook::plain:
        return body(Exl3Plain{});
      case Exl3Codebook::mcg:
        return body(Exl3Mcg{});
      case Exl3Codebook::mul1:
        return body(Exl3Mul1{});
    }
  }

  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    if (rows.count == 0) return;
    const Exl3Matrix matrix = place(storage.bytes.raw()).matrix;
    const int64_t last = rows.first + rows.count - 1;
    const int64_t groups =
        rows.indices != nullptr ? rows.count : last / kExl3Block - rows.first / kExl3Block + 1;
    with_book([&]<class Book>(Book) {
      ops.launch(DecodeExl3<Book>{matrix, rows.indices, out.raw(), rows.first, rows.count,
                                  out.row_stride(), out.dtype() == DType::bf16},
                 groups * (layout_.cols / kExl3Block));
    });
  }

  std::string name_;
  Exl3Layout layout_;
};

}  // namespace

FormatPointer make_exl3_format(const Exl3Layout& layout) {
  const auto fits = [](int64_t extent) { return extent > 0 && extent % kExl3Block == 0; };
  if (!fits(layout.rows) || !fits(layout.cols) || layout.bits < 1 || layout.bits > 8) {
    throw Error(ErrorKind::model,
                fmt::format("a matrix [{}, {}] in {} bits is none of EXL3", layout.rows,
                            layout.cols, layout.bits),
                "read are 1 to 8 bits, in rows and columns that are multiples of 128");
  }
  return std::make_shared<const Exl3Format>(layout);
}

}  // namespace jackscrew
