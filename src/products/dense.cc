#include "products/dense.h"

#include <algorithm>

#include "quant/plain.h"

namespace jackscrew {

namespace {

class DenseProduct : public Product {
 public:
  DenseProduct(const char* name, DType arithmetic) : name_(name), arithmetic_(arithmetic) {}

  const char* name() const override { return name_; }
  DType kept_dtype() const override { return arithmetic_; }
  DType attention_operands() const override { return arithmetic_; }

  Operand prepare(Context& context, const Tensor& x) const override {
    return {x, cast(context, x)};
  }

  void forward(Context& context, const Operand& a, const Weight& weight, const Tensor& y,
               Accumulate accumulate) const override {
    if (arithmetic_ == DType::f32 && a.x.rows() == 1 && weight.as_f32().empty()) {
      weight.multiply(context.ops, a.x, y, accumulate);
      return;
    }
    for_panels(context, weight, [&](const Tensor& panel, int64_t begin, int64_t end) {
      context.ops.gemm(a.cast, Transpose::no, panel, Transpose::yes, y.columns(begin, end),
                       accumulate);
    });
  }

  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const Weight& weight) const override {
    Gradient g(context, *this, weight);
    g.x = a.x;
    g.dy = dy;
    g.x_cast = a.cast;
    g.dy_cast = cast(context, dy);
    return g;
  }

  void add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    Accumulate now = accumulate;
    for_panels(g.context(), g.weight(), [&](const Tensor& panel, int64_t begin, int64_t end) {
      g.context().ops.gemm(g.dy_cast.columns(begin, end), Transpose::no, panel, Transpose::no, dx,
                           now);
      now = Accumulate::yes;
    });
  }

  void add_dw(const Gradient& g, const Tensor& d) const override {
    g.context().ops.gemm(g.dy_cast, Transpose::yes, g.x_cast, Transpose::no, d, Accumulate::yes);
  }

  // pᵀ dyᵀ x = (dy p)ᵀ x. The thin factors stay in f32: they are a learner's, not the product's.
  void add_left(const Gradient& g, const Tensor& p, const Tensor& r) const override {
    const Arena::Frame frame(g.context().scratch);
    const Tensor thin = g.context().scratch.tensor(DType::f32, {g.dy.rows(), p.cols()});
    g.context().ops.gemm(g.dy, Transpose::no, p, Transpose::no, thin, Accumulate::no);
    g.context().ops.gemm(thin, Transpose::yes, g.x, Transpose::no, r, Accumulate::yes);
  }

  // dyᵀ x q = dyᵀ (x q)
  void add_right(const Gradient& g, const Tensor& q, const Tensor& r) const override {
    const Arena::Frame frame(g.context().scratch);
    const Tensor thin = g.context().scratch.tensor(DType::f32, {g.x.rows(), q.cols()});
    g.context().ops.gemm(g.x, Transpose::no, q, Transpose::no, thin, Accumulate::no);
    g.context().ops.gemm(g.dy, Transpose::yes, thin, Transpose::no, r, Accumulate::yes);
  }

 private:
  Tensor cast(Context& context, const Tensor& x) const {
    if (arithmetic_ == DType::f32) return x;
    const Tensor out = context.scratch.tensor(arithmetic_, {x.rows(), x.cols()});
    convert_to_bf16(context.ops, x, out);
    return out;
  }

  // Calls body(panel [end - begin, in], begin, end) over all rows of the weight. A weight that is
  // already in the product's arithmetic is its own panel.
  template <class Body>
  void for_panels(Context& context, const Weight& weight, const Body& body) const {
    if (arithmetic_ == DType::f32 && !weight.as_f32().empty()) {
      body(weight.as_f32(), 0, weight.rows());
      return;
    }
    if (arithmetic_ == DType::bf16 && &weight.format() == &bf16_format()) {
      body(Tensor(weight.storage().bytes.raw(), DType::bf16, {weight.rows(), weight.cols()}), 0,
           weight.rows());
      return;
    }
    const Arena::Frame frame(context.scratch);
    const int64_t step =
        std::min(weight.rows(), panel_rows(weight.cols(), dtype_size(arithmetic_)));
    const Tensor panel = context.scratch.tensor(arithmetic_, {step, weight.cols()});
    for (int64_t begin = 0; begin < weight.rows(); begin += step) {
      const int64_t end = std::min(weight.rows(), begin + step);
      const Tensor part = panel.rows(0, end - begin);
      weight.decode(context.ops, begin, end, part);
      body(part, begin, end);
    }
  }

  const char* name_;
  DType arithmetic_;
};

}  // namespace

const Product& f32_product() {
  static const DenseProduct kProduct("f32", DType::f32);
  return kProduct;
}

const Product& bf16_product() {
  static const DenseProduct kProduct("bf16", DType::bf16);
  return kProduct;
}

}  // namespace jackscrew
