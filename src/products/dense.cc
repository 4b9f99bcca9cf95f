#include "products/dense.h"

#include <algorithm>

#include "quant/plain.h"

namespace jackscrew {

namespace {

class DenseProduct : public Product {
 public:
  DenseProduct(const char* name, DType arithmetic) : name_(name), arithmetic_(arithmetic) {}

  const char* name() const override { return name_; }
  DType activation_dtype() const override { return arithmetic_; }
  DType operand_dtype() const override { return arithmetic_; }

  Tensor ready(Context& context, const Weight& weight, int64_t bytes) const override {
    const int64_t row_bytes = weight.cols() * dtype_size(arithmetic_);
    if (is_own_panel(weight) || weight.rows() > bytes / row_bytes) return {};
    const Tensor out = context.scratch.tensor(arithmetic_, {weight.rows(), weight.cols()});
    weight.decode(context.ops, 0, weight.rows(), out);
    return out;
  }

  Operand prepare(Context& context, const Tensor& x) const override {
    return {converted(context, x, arithmetic_)};
  }

  void forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
               Accumulate accumulate) const override {
    const Weight& weight = use.weight;
    if (multiplies_stored(context, a.x, weight)) {
      multiply_stored(context, a.x, weight, y, accumulate);
      return;
    }
    for_panels(context, weight, use.ready, [&](const Tensor& panel, int64_t begin, int64_t end) {
      context.ops.gemm(a.x, Transpose::no, panel, Transpose::yes, y.columns(begin, end),
                       accumulate);
    });
  }

  void forward_onto(Context& context, const Operand& a, const LinearUse& use, const Tensor& addend,
                    const Tensor& y) const override {
    if (multiplies_stored(context, a.x, use.weight)) {
      return Product::forward_onto(context, a, use, addend, y);
    }
    for_panels(context, use.weight, use.ready,
               [&](const Tensor& panel, int64_t begin, int64_t end) {
                 context.ops.gemm_onto(addend.columns(begin, end), a.x, Transpose::no, panel,
                                       Transpose::yes, y.columns(begin, end));
               });
  }

  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const LinearUse& use) const override {
    Gradient g(context, *this, use.weight);
    g.x = a.x;
    g.dy = converted(context, dy, arithmetic_);
    g.ready = use.ready;
    return g;
  }

  void add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    Context& context = g.context();
    const bool in_panels =
        g.ready.empty() && panel_step(context.ops, g.weight()) < g.weight().rows();
    if (dx.dtype() != DType::f32 && in_panels) {
      // Panels are parts of the contraction: their sum is rounded once.
      const Arena::Frame frame(context.scratch);
      const Tensor sum = context.scratch.tensor(DType::f32, {dx.rows(), dx.cols()});
      if (accumulate == Accumulate::yes) convert_to_f32(context.ops, dx, sum);
      add_dx(g, sum, accumulate);
      convert_to_bf16(context.ops, sum, dx);
      return;
    }
    Accumulate now = accumulate;
    for_panels(context, g.weight(), g.ready, [&](const Tensor& panel, int64_t begin, int64_t end) {
      context.ops.gemm(g.dy.columns(begin, end), Transpose::no, panel, Transpose::no, dx, now);
      now = Accumulate::yes;
    });
  }

  void add_dw(const Gradient& g, const Tensor& d) const override {
    g.context().ops.gemm(g.dy, Transpose::yes, g.x, Transpose::no, d, Accumulate::yes);
  }

  // (dyᵀ x)ᵀ p = xᵀ (dy p)
  void add_left(const Gradient& g, const Tensor& p, const Tensor& r) const override {
    const Arena::Frame frame(g.context().scratch);
    const Tensor thin = times_thin(g.context(), g.dy, p);
    g.context().ops.gemm(g.x, Transpose::yes, thin, Transpose::no, r, Accumulate::yes);
  }

  // dyᵀ x q = dyᵀ (x q)
  void add_right(const Gradient& g, const Tensor& q, const Tensor& r) const override {
    const Arena::Frame frame(g.context().scratch);
    const Tensor thin = times_thin(g.context(), g.x, q);
    g.context().ops.gemm(g.dy, Transpose::yes, thin, Transpose::no, r, Accumulate::yes);
  }

 private:
  // Whether a weight is multiplied as it is stored: by a single token, which decoding would delay.
  bool multiplies_stored(const Context& context, const Tensor& x, const Weight& weight) const {
    if (x.rows() != 1 || is_own_panel(weight)) return false;
    return arithmetic_ == DType::f32 || context.ops.multiplies_tokens_as_stored();
  }

  static void multiply_stored(Context& context, const Tensor& x, const Weight& weight,
                              const Tensor& y, Accumulate accumulate) {
    const Arena::Frame frame(context.scratch);
    const Tensor exact = converted(context, x, DType::f32);
    if (y.dtype() == DType::f32) {
      weight.multiply(context.ops, exact, y, accumulate, context.scratch);
      return;
    }
    const Tensor sum = context.scratch.tensor(DType::f32, {1, y.cols()});
    if (accumulate == Accumulate::yes) convert_to_f32(context.ops, y, sum);
    weight.multiply(context.ops, exact, sum, accumulate, context.scratch);
    convert_to_bf16(context.ops, sum, y);
  }

  // x [tokens, width] times a thin matrix [width, rank], in the product's arithmetic.
  Tensor times_thin(Context& context, const Tensor& x, const Tensor& matrix) const {
    const Tensor out = context.scratch.tensor(arithmetic_, {x.rows(), matrix.cols()});
    const Arena::Frame frame(context.scratch);
    context.ops.gemm(x, Transpose::no, converted(context, matrix, arithmetic_), Transpose::no, out,
                     Accumulate::no);
    return out;
  }

  bool is_own_panel(const Weight& weight) const {
    return arithmetic_ == DType::f32 ? !weight.as_f32().empty()
                                     : &weight.format() == &bf16_format();
  }

  // Rows of a weight that are multiplied at a time.
  int64_t panel_step(const Ops& ops, const Weight& weight) const {
    if (is_own_panel(weight)) return weight.rows();
    return std::min(weight.rows(),
                    panel_rows(weight.cols(), dtype_size(arithmetic_), ops.panel_bytes()));
  }

  // Calls body(panel [end - begin, in], begin, end) over all rows of the weight. A weight that is
  // already in the product's arithmetic is its own panel; one that was made ready is `ready`. A
  // plan sees only the first panel: none is larger, and a large model has millions.
  template <class Body>
  void for_panels(Context& context, const Weight& weight, const Tensor& ready,
                  const Body& body) const {
    if (!ready.empty()) {
      body(ready, 0, weight.rows());
      return;
    }
    if (is_own_panel(weight)) {
      body(arithmetic_ == DType::f32
               ? weight.as_f32()
               : Tensor(weight.storage().bytes.raw(), DType::bf16, {weight.rows(), weight.cols()}),
           0, weight.rows());
      return;
    }
    const Arena::Frame frame(context.scratch);
    const int64_t step = panel_step(context.ops, weight);
    const Tensor panel = context.scratch.tensor(arithmetic_, {step, weight.cols()});
    for (int64_t begin = 0; begin < weight.rows(); begin += step) {
      const int64_t end = std::min(weight.rows(), begin + step);
      const Tensor part = panel.rows(0, end - begin);
      weight.decode(context.ops, begin, end, part);
      body(part, begin, end);
      if (context.ops.plans_only()) return;
    }
  }

  const char* name_;
  DType arithmetic_;
};

}  // namespace

std::unique_ptr<const Product> make_f32_product() {
  return std::make_unique<DenseProduct>("f32", DType::f32);
}

std::unique_ptr<const Product> make_bf16_product() {
  return std::make_unique<DenseProduct>("bf16", DType::bf16);
}

const Product& f32_product() {
  static const DenseProduct kProduct("f32", DType::f32);
  return kProduct;
}

}  // namespace jackscrew
