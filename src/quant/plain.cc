#include "quant/plain.h"

#include "base/half.h"
#include "quant/plain.rows.h"

namespace jackscrew {

namespace {

template <class From, class To>
void convert(Ops& ops, const From* from, int64_t from_stride, const int32_t* indices,
             const Tensor& to) {
  const int64_t width = to.cols();
  if (indices == nullptr && from_stride == width && to.row_stride() == width) {
    const LongRows same = long_rows(to.rows(), width);
    ops.launch(
        ConvertRows<From, To>{from, nullptr, to.data<To>(), same.width, same.width, same.width},
        same.rows);
    return;
  }
  ops.launch(
      ConvertRows<From, To>{from, indices, to.data<To>(), width, from_stride, to.row_stride()},
      to.rows());
}

template <class Element>
class PlainFormat : public Format {
 public:
  explicit PlainFormat(const char* name) : name_(name) {}
  const char* name() const override { return name_; }

  int64_t row_bytes(int64_t cols) const override {
    if (cols <= 0) fail(ErrorKind::model, "rows of {} elements cannot be stored", cols);
    return checked_mul(cols, sizeof(Element));
  }

  void multiply(Ops& ops, const Storage& storage, const Tensor& x, const Tensor& y,
                Accumulate accumulate, Arena&) const override {
    ops.launch(DotRows<Element>{x.data<float>(), element(storage, 0), y.data<float>(), x.cols(),
                                accumulate == Accumulate::yes},
               y.cols());
  }

  bool can_encode() const override { return true; }

  void encode(Ops& ops, const RowSource& source, const Storage& storage, const Rounding& rounding,
              Arena&) const override {
    for_encode_panels(source, storage, [&](const Tensor& panel, int64_t first_row) {
      ops.launch(RoundRows<Element>{panel.data<float>(), element(storage, first_row), storage.cols,
                                    first_row, rounding},
                 panel.rows());
    });
  }

  void decode_rows(Ops& ops, const Storage& storage, const Rows& rows,
                   const Tensor& out) const override {
    convert_rows(ops, element(storage, rows.first), storage.cols, rows.indices, out);
  }

 private:
  static Element* element(const Storage& storage, int64_t row) {
    auto* base = static_cast<Element*>(storage.bytes.raw());
    return base == nullptr ? nullptr : base + row * storage.cols;
  }
  static void convert_rows(Ops& ops, const Element* from, int64_t from_stride,
                           const int32_t* indices, const Tensor& out) {
    if (out.dtype() == DType::bf16) {
      convert<Element, bf16>(ops, from, from_stride, indices, out);
    } else {
      convert<Element, float>(ops, from, from_stride, indices, out);
    }
  }

  const char* name_;
};

}  // namespace

const Format& f32_format() {
  static const PlainFormat<float> kFormat("f32");
  return kFormat;
}

const Format& bf16_format() {
  static const PlainFormat<bf16> kFormat("bf16");
  return kFormat;
}

const Format& f16_format() {
  static const PlainFormat<f16> kFormat("f16");
  return kFormat;
}

void convert_to_bf16(Ops& ops, const Tensor& from, const Tensor& to) {
  convert<float, bf16>(ops, from.data<float>(), from.row_stride(), nullptr, to);
}

void convert_to_f32(Ops& ops, const Tensor& from, const Tensor& to) {
  convert<bf16, float>(ops, from.data<bf16>(), from.row_stride(), nullptr, to);
}

Tensor converted(Context& context, const Tensor& x, DType dtype) {
  if (x.dtype() == dtype) return x;
  const Tensor out = context.scratch.tensor(dtype, {x.rows(), x.cols()});
  (dtype == DType::bf16 ? convert_to_bf16 : convert_to_f32)(context.ops, x, out);
  return out;
}

}  // namespace jackscrew
