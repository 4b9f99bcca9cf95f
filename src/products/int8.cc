#include "products/int8.h"

#include <algorithm>

#include "products/dense.h"
#include "products/int8.rows.h"

namespace jackscrew {

namespace {

constexpr int32_t kWeightLimit = 127;

// Bytes of codes in a panel. In dx panels are pieces of the contraction, each added to all of dx.
constexpr int64_t kCodePanelBytes = int64_t{8} << 20;

// A multiple of 512 keeps groups and partial sums of dx where they are without panels.
int64_t code_panel_rows(int64_t cols) {
  return std::max<int64_t>(512, kCodePanelBytes / cols / 512 * 512);
}

// Codes are written four at a time.
Tensor take_codes(Arena& scratch, int64_t rows, int64_t cols) {
  return scratch.tensor(DType::i8, {rows, round_up(cols, 4)}).columns(0, cols);
}

Int8Rows take_groups(Arena& scratch, int64_t rows, int64_t cols) {
  return {take_codes(scratch, rows, cols),
          scratch.tensor(DType::f32, {rows, ceil_div(cols, kInt8Group)})};
}

void quantize(Ops& ops, const Tensor& from, const Int8Rows& to, int32_t limit, bool grouped) {
  ops.launch(QuantizeRows{from.data<float>(), to.codes.data<int8_t>(), to.scales.data<float>(),
                          from.cols(), from.row_stride(), to.codes.row_stride(), limit, grouped},
             from.rows());
}

class Int8Product : public Product {
 public:
  const char* name() const override { return "int8"; }
  DType kept_dtype() const override { return DType::f32; }

  Operand prepare(Context& context, const Tensor& x) const override {
    if (single(x)) return {x, {}, {}};
    const Int8Rows rows = take_groups(context.scratch, x.rows(), x.cols());
    quantize(context.ops, x, rows, context.ops.int8_limit(), true);
    return {x, rows.codes, rows.scales};
  }

  void forward(Context& context, const Operand& a, const Weight& weight, const Tensor& y,
               Accumulate accumulate) const override {
    if (single(a.x)) {
      f32_product().forward(context, {a.x, a.x, {}}, weight, y, accumulate);
      return;
    }
    for_panels(context, weight, [&](const Int8Rows& panel, int64_t begin, int64_t end) {
      context.ops.gemm_int8({a.cast, a.scales}, panel, Transpose::yes, y.columns(begin, end),
                            accumulate, context.scratch);
    });
  }

  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const Weight& weight) const override {
    Gradient g(context, *this, weight);
    g.x = a.x;
    g.dy = dy;
    g.x_cast = a.x;
    g.dy_cast = dy;
    return g;
  }

  void add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    Context& context = g.context();
    Accumulate now = accumulate;
    for_panels(context, g.weight(), [&](const Int8Rows& panel, int64_t begin, int64_t end) {
      const Arena::Frame frame(context.scratch);
      const Int8Rows dy = take_groups(context.scratch, g.dy.rows(), end - begin);
      quantize_gradient(g, panel.scales, begin, end, dy);
      context.ops.gemm_int8(dy, {panel.codes, {}}, Transpose::no, dx, now, context.scratch);
      now = Accumulate::yes;
    });
  }

  void add_dw(const Gradient& g, const Tensor& d) const override { f32_product().add_dw(g, d); }
  void add_left(const Gradient& g, const Tensor& p, const Tensor& r) const override {
    f32_product().add_left(g, p, r);
  }
  void add_right(const Gradient& g, const Tensor& q, const Tensor& r) const override {
    f32_product().add_right(g, q, r);
  }

 private:
  // A single token is bound by reading the weight, which rounding it would not make faster.
  static bool single(const Tensor& x) { return x.rows() == 1; }

  // Columns [begin, end) of dy, times the scales of the weight's rows, which lie along the
  // contraction.
  static void quantize_gradient(const Gradient& g, const Tensor& scales, int64_t begin, int64_t end,
                                const Int8Rows& to) {
    const Tensor part = g.dy.columns(begin, end);
    g.context().ops.launch(
        QuantizeGradientRows{part.data<float>(), scales.data<float>(), to.codes.data<int8_t>(),
                             to.scales.data<float>(), g.context().scalars, part.cols(),
                             part.row_stride(), to.codes.row_stride(), g.token_offset,
                             div_exact(begin, 4), ceil_div(g.dy.cols(), 4),
                             name_hash(g.weight().name().c_str()), g.context().ops.int8_limit()},
        part.rows());
  }

  // Calls body(panel, begin, end) over all rows of the weight; panels begin at multiples of 512.
  template <class Body>
  void for_panels(Context& context, const Weight& weight, const Body& body) const {
    const Arena::Frame frame(context.scratch);
    const int64_t cols = weight.cols();
    const int64_t step = std::min(weight.rows(), code_panel_rows(cols));
    const Int8Rows panel{take_codes(context.scratch, step, cols),
                         context.scratch.tensor(DType::f32, {step})};
    for (int64_t begin = 0; begin < weight.rows(); begin += step) {
      const int64_t end = std::min(weight.rows(), begin + step);
      const Int8Rows part{panel.codes.rows(0, end - begin), panel.scales.columns(0, end - begin)};
      quantize_weight(context, weight, begin, end, part);
      body(part, begin, end);
    }
  }

  // Rows [begin, end) of the weight, by way of f32 where it is stored otherwise.
  static void quantize_weight(Context& context, const Weight& weight, int64_t begin, int64_t end,
                              const Int8Rows& to) {
    if (!weight.as_f32().empty()) {
      quantize(context.ops, weight.as_f32().rows(begin, end), to, kWeightLimit, false);
      return;
    }
    const Arena::Frame frame(context.scratch);
    const int64_t step = std::min(end - begin, panel_rows(weight.cols(), dtype_size(DType::f32)));
    const Tensor decoded = context.scratch.tensor(DType::f32, {step, weight.cols()});
    for (int64_t at = begin; at < end; at += step) {
      const int64_t until = std::min(end, at + step);
      const Tensor rows = decoded.rows(0, until - at);
      weight.decode(context.ops, at, until, rows);
      quantize(
          context.ops, rows,
          {to.codes.rows(at - begin, until - begin), to.scales.columns(at - begin, until - begin)},
          kWeightLimit, false);
    }
  }
};

}  // namespace

const Product& int8_product() {
  static const Int8Product kProduct;
  return kProduct;
}

}  // namespace jackscrew
