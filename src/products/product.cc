#include "products/product.h"

#include "base/error.h"
#include "kernels/sum_over_tokens.h"
#include "products/dense.h"
#include "products/int4.h"
#include "products/int8.h"

namespace jackscrew {

namespace {

[[noreturn]] void refuse(const Gradient& g, const char* what) {
  throw Error(ErrorKind::usage, fmt::format("{} cannot give {}", g.weight().name(), what),
              "choose another learner for this weight");
}

class GatherContributor : public Contributor {
 public:
  void add_dw(const Gradient& g, const Tensor& d) const override {
    g.context().ops.launch(ScatterAddRows{g.dy.data<float>(), g.indices.data<int32_t>(),
                                          d.data<float>(), g.dy.rows(), g.dy.cols()},
                           ScatterAddRows::kResidues * ceil_div(g.dy.cols(), kColumnBlock));
  }
};

}  // namespace

void Product::forward_onto(Context& context, const Operand& a, const LinearUse& use,
                           const Tensor& addend, const Tensor& y) const {
  context.ops.copy(y, addend);
  forward(context, a, use, y, Accumulate::yes);
}

void Contributor::add_dx(const Gradient& g, const Tensor&, Accumulate) const {
  refuse(g, "a gradient of its input");
}
void Contributor::add_left(const Gradient& g, const Tensor&, const Tensor&) const {
  refuse(g, "a gradient projected from the left");
}
void Contributor::add_right(const Gradient& g, const Tensor&, const Tensor&) const {
  refuse(g, "a gradient projected from the right");
}
void Contributor::add_scale(const Gradient& g, const Tensor&) const {
  refuse(g, "the gradient of a factor on its rows");
}
void Contributor::add_start(const Gradient& g, const Tensor&) const {
  refuse(g, "a value to begin with");
}

void Product::add_scale(const Gradient& g, const Tensor& d) const {
  Context& context = g.context();
  const Arena::Frame frame(context.scratch);
  const Tensor y = context.scratch.tensor(DType::f32, {g.dy.rows(), g.dy.cols()});
  forward(context, prepare(context, g.x), {g.weight(), g.product_parameters}, y, Accumulate::no);
  with_activation(g.dy.dtype(), [&]<class Activation>(Activation) {
    add_over_tokens(context,
                    ColumnDots<Activation>{g.dy.data<Activation>(), y.data<float>(), nullptr,
                                           y.rows(), y.cols(), 0},
                    d);
  });
}

void Product::add_parameter_gradient(const Gradient& g, size_t, const Tensor&) const {
  refuse(g, "gradients of parameters of its product");
}

void Product::add_parameter_start(const Gradient& g, size_t, const Tensor&) const {
  refuse(g, "values for parameters of its product to begin with");
}

std::span<const ProductEntry> all_products() {
  static const ProductEntry kProducts[] = {
      {"f32", {}, [](const OptionSet&, const Ops&) { return make_f32_product(); }},
      {"bf16",
       {},
       [](const OptionSet&, const Ops& ops) {
         if (!ops.has_bf16()) {
           throw Error(
               ErrorKind::device,
               fmt::format("product=bf16 needs a CPU with AVX512-BF16 or a GPU; this run has {}",
                           ops.level()),
               "use product=f32");
         }
         return make_bf16_product();
       }},
      int8_entry(),
      int4_entry(),
      w4a8_entry(),
  };
  return kProducts;
}

const ProductEntry& find_product(std::string_view name) {
  if (name == "auto") name = "f32";
  std::string known = "auto";
  for (const ProductEntry& entry : all_products()) {
    if (name == entry.name) return entry;
    known += fmt::format(", {}", entry.name);
  }
  throw Error(ErrorKind::usage, fmt::format("unknown product {}", name),
              "known products: " + known);
}

const Contributor& gather_contributor() {
  static const GatherContributor kContributor;
  return kContributor;
}

}  // namespace jackscrew
