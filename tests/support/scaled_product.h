// A product that owns a parameter, and that no file of the program knows: y = s x Wᵀ with a scale s
// beside every weight.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "products/arithmetic.h"
#include "products/dense.h"
#include "quant/plain.h"

namespace jackscrew {

class ScaledProduct : public Product {
 public:
  explicit ScaledProduct(double initial_scale) : initial_(static_cast<float>(initial_scale)) {}

  const char* name() const override { return "scaled"; }
  DType activation_dtype() const override { return DType::f32; }
  DType operand_dtype() const override { return DType::f32; }

  Operand prepare(Context& context, const Tensor& x) const override {
    return f32_product().prepare(context, x);
  }
  void forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
               Accumulate accumulate) const override {
    const Arena::Frame frame(context.scratch);
    f32_product().forward(context, {scaled(context, a.x, *use.product_parameters[0])}, use.weight,
                          y, accumulate);
  }
  Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                    const LinearUse& use) const override {
    Gradient g(context, *this, use.weight);
    g.x = a.x;
    g.dy = dy;
    g.product_parameters = use.product_parameters;
    return g;
  }
  void add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const override {
    const Arena::Frame frame(g.context().scratch);
    unscaled(g, scaled(g.context(), g.dy, *g.product_parameters[0])).add_dx(dx, accumulate);
  }
  void add_dw(const Gradient& g, const Tensor& d) const override {
    const Arena::Frame frame(g.context().scratch);
    unscaled(g, scaled(g.context(), g.dy, *g.product_parameters[0])).add_dw(d);
  }

  std::vector<WeightSpec> parameters(const WeightSpec& weight) const override {
    const std::string base = weight.name.substr(0, weight.name.rfind(".weight"));
    return {{base + ".scale", 1, 1, WeightKind::product, weight.layer, weight.module}};
  }
  void initialise(Context& context, const LinearUse& use) const override {
    float value = initial_;
    context.ops.copy(use.product_parameters[0]->as_f32(), Tensor(&value, DType::f32, {1, 1}));
  }
  // ds = sum of dy times x Wᵀ
  void add_parameter_gradient(const Gradient& g, size_t, const Tensor& d) const override {
    Context& context = g.context();
    const Arena::Frame frame(context.scratch);
    const Tensor y = context.scratch.tensor(DType::f32, {g.dy.rows(), g.dy.cols()});
    f32_product().forward(context, {g.x}, g.weight(), y, Accumulate::no);
    if (context.ops.plans_only()) return;
    double sum = 0.0;
    for (int64_t t = 0; t < y.rows(); ++t) {
      const float* dy = g.dy.rows(t, t + 1).data<float>();
      for (int64_t i = 0; i < y.cols(); ++i) {
        sum += static_cast<double>(dy[i]) * static_cast<double>(y.data<float>()[t * y.cols() + i]);
      }
    }
    d.data<float>()[0] += static_cast<float>(sum);
  }

 private:
  static Gradient unscaled(const Gradient& g, const Tensor& dy) {
    return f32_product().backward(g.context(), {g.x}, dy, g.weight());
  }
  static Tensor scaled(Context& context, const Tensor& x, const Weight& scale) {
    const Tensor out = context.scratch.tensor(DType::f32, {x.rows(), x.cols()});
    if (context.ops.plans_only()) return out;
    for (int64_t t = 0; t < x.rows(); ++t) {
      const float* from = x.rows(t, t + 1).data<float>();
      for (int64_t i = 0; i < x.cols(); ++i) {
        out.data<float>()[t * x.cols() + i] = from[i] * scale.as_f32().data<float>()[0];
      }
    }
    return out;
  }

  float initial_;
};

inline constexpr OptionSpec kScaledOptions[] = {
    {.name = "initial_scale", .type = OptionType::number, .default_text = "1", .help = "scale"}};

// Its row of the table of products.
inline constexpr ProductEntry kScaledEntry = {
    "scaled", kScaledOptions,
    [](const OptionSet& options, const Ops&) -> std::unique_ptr<const Product> {
      return std::make_unique<ScaledProduct>(options.number("initial_scale"));
    }};

// The arithmetic of a run with product=scaled initial_scale=`scale`.
inline std::unique_ptr<const Arithmetic> scaled_arithmetic(const Ops& ops, const char* scale) {
  OptionSet options;
  options.add({"Product scaled", kScaledEntry.options});
  options.set("initial_scale", scale, "");
  return std::make_unique<Arithmetic>(kScaledEntry.make(options, ops));
}

}  // namespace jackscrew
