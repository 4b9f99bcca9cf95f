#include "products/int8.h"

#include <algorithm>

#include "products/dense.h"
#include "products/int8.rows.h"
#include "products/int8_gradient.h"
#include "products/rounded.h"
#include "products/weight_panels.h"
#include "quant/int8.h"

namespace jackscrew {

namespace {

class Int8Product : public RoundedProduct {
 public:
  explicit Int8Product(const Int8Options& options) : weight_gradient_(options.weight_gradient) {}

  const char* name() const override { return "int8"; }
  DType operand_dtype() const override { return DType::bf16; }
  OptionOfDw option_of_dw_alone() const override {
    if (!weight_gradient_) return {};
    return {"int8_dw", "leave int8_dw out"};
  }

  Operand prepare(Context& context, const Tensor& x) const override {
    if (is_single_token(x)) return {x};
    const Int8Rows to = take_groups(context.scratch, x.rows(), x.cols());
    context.ops.launch(
        QuantizeGroups{x.data<float>(), to.codes.data<int8_t>(), to.scales.data<float>(), x.cols(),
                       x.row_stride(), to.scales.cols(), context.ops.int8_limit()},
        to.scales.size());
    return {x, to};
  }

  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const LinearUse& use) const override {
    Gradient g(context, *this, use.weight);
    g.x = a.x;
    g.dy = dy;
    return g;
  }

 private:
  void rounded_forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
                       Accumulate accumulate) const override {
    for_panels(context, use.weight, [&](const Int8Rows& panel, int64_t begin, int64_t end) {
      context.ops.gemm_int8(a.rows, panel, Transpose::yes, y.columns(begin, end), accumulate,
                            context.scratch);
    });
  }

  void rounded_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    Context& context = g.context();
    Accumulate now = accumulate;
    for_panels(context, g.weight(), [&](const Int8Rows& panel, int64_t begin, int64_t end) {
      const Arena::Frame frame(context.scratch);
      const Int8Rows dy = gradient_of_rows(g, panel.scales, begin, end, context.ops.int8_limit());
      context.ops.gemm_int8(dy, {panel.codes, {}}, Transpose::no, dx, now, context.scratch);
      now = Accumulate::yes;
    });
  }

  void rounded_dw(const Gradient& g, const Tensor& d) const override {
    if (!weight_gradient_) {
      f32_product().add_dw(g, d);
      return;
    }
    Context& context = g.context();
    const Arena::Frame frame(context.scratch);
    const Int8Rows dy = gradient_of_columns(g, {}, context.ops.int8_limit());
    const Int8Rows x = columns_in_bytes(context, g.x);
    context.ops.gemm_int8(dy, x, Transpose::no, d, Accumulate::yes, context.scratch);
  }

  // Calls body(panel, begin, end) over all rows of the weight. A panel holds rows as int8_row would
  // store them; a weight that is stored so is its own panel.
  template <class Body>
  void for_panels(Context& context, const Weight& weight, const Body& body) const {
    if (const Int8Rows stored = weight.as_int8_rows(); !stored.codes.empty()) {
      body(stored, 0, weight.rows());
      return;
    }
    const Arena::Frame frame(context.scratch);
    const Format& format = int8_row_format();
    const int64_t cols = weight.cols();
    const int64_t step = panel_rows_of(weight, context.ops.panel_bytes(), 1);
    const Tensor bytes = context.scratch.tensor(DType::u8, {format.storage_bytes(step, cols)});
    const Tensor decoded = decoded_panel(context, weight, std::min(step, encode_panel_rows(cols)));
    for (int64_t begin = 0; begin < weight.rows(); begin += step) {
      const int64_t end = std::min(weight.rows(), begin + step);
      const auto source = [&](int64_t from, int64_t to) {
        return values_of(context, weight, begin + from, begin + to, decoded);
      };
      const Storage panel{bytes, end - begin, cols};
      format.encode(context.ops, source, panel, {}, context.scratch);
      body(format.int8_rows(panel), begin, end);
    }
  }

  bool weight_gradient_;
};

}  // namespace

std::unique_ptr<const Product> make_int8_product(const Int8Options& options) {
  return std::make_unique<Int8Product>(options);
}

ProductEntry int8_entry() {
  static constexpr OptionSpec kOptions[] = {
      {.name = "int8_dw",
       .type = OptionType::text,
       .default_text = "f32",
       .help = "arithmetic of the weights' gradients: f32, or int8 like the other two products",
       .choices = "f32 int8",
       .training_only = true},
  };
  return {"int8", kOptions, [](const OptionSet& options, const Ops&) {
            return make_int8_product({.weight_gradient = options.text("int8_dw") == "int8"});
          }};
}

}  // namespace jackscrew
