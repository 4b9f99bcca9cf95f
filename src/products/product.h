// Products: the arithmetic of y = x Wᵀ and of its gradients, for a weight in any storage format.
// Adding one is a pair of files here and a row of the table in product.cc.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "products/gradient.h"

namespace jackscrew {

// An input made ready for a product once and shared by the weights that read it (q, k and v).
struct Operand {
  Tensor x;            // [tokens, in], in the product's activation_dtype()
  Int8Rows rows = {};  // x in int8, for an int8 product
};

// A weight as a product reads it.
struct LinearUse {
  LinearUse(const Weight& of, std::span<const Weight* const> beside = {})
      : weight(of), product_parameters(beside) {}

  const Weight& weight;
  std::span<const Weight* const>
      product_parameters;  // what Product::parameters() lists, in its order
  Tensor ready = {};       // what Product::ready() gave, or empty
};

class Product : public Contributor {
 public:
  virtual const char* name() const = 0;
  // The type that activations between two products, and their gradients, may be rounded to: f32 or
  // bf16.
  virtual DType activation_dtype() const = 0;
  // The type that products without a weight (attention's, that of an update) may round their
  // operands to: f32 or bf16.
  virtual DType operand_dtype() const = 0;

  // The product that multiplies a weight of the model: this one, or another one of its own.
  virtual const Product& product_of(const WeightSpec& /*weight*/) const { return *this; }
  // Throws Error(usage) where it cannot multiply one of `weights`, which are all that it is to
  // multiply. `excluded`: what product_exclude leaves to another product, for a hint.
  virtual void check(std::span<const WeightSpec> /*weights*/,
                     const std::vector<std::string>& /*excluded*/) const {}

  // The whole weight as this product multiplies it, [out, in] in context.scratch, for one that is
  // used many times in a row; empty where it needs no decoding, or takes more than `bytes`.
  virtual Tensor ready(Context&, const Weight&, int64_t /*bytes*/) const { return {}; }
  // Prepares x, f32 or of activation_dtype(). What is made of it lies in context.scratch, whose
  // frame the caller holds.
  virtual Operand prepare(Context& context, const Tensor& x) const = 0;
  // y [tokens, out] (+)= x Wᵀ, f32 or of activation_dtype()
  virtual void forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
                       Accumulate accumulate) const = 0;
  // y = addend + x Wᵀ, for an f32 y and an addend like it that shares no memory with it
  virtual void forward_onto(Context& context, const Operand& a, const LinearUse& use,
                            const Tensor& addend, const Tensor& y) const;
  // The gradient operator for dy [tokens, out], f32 or of activation_dtype(). Casts dy once, into
  // context.scratch.
  virtual Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                            const LinearUse& use) const = 0;

  // The parameters that this product keeps beside a weight, which belong to the weight's owner: f32
  // vectors of WeightKind::product. Learners train them as they train norms; no written model
  // contains them. The head is asked for as lm_head, whether it is the embedding or not.
  virtual std::vector<WeightSpec> parameters(const WeightSpec& /*weight*/) const { return {}; }
  // The settings with which it keeps none, for a hint; empty where it never keeps any.
  virtual const char* settings_without_parameters() const { return ""; }
  // The option that says how dW is computed and nothing else, and what a hint advises where nothing
  // forms dW; a null name where none is set so.
  struct OptionOfDw {
    const char* name = nullptr;
    const char* advice = "";
  };
  virtual OptionOfDw option_of_dw_alone() const { return {}; }
  // Writes the initial values of use.product_parameters, once the weight has its own.
  virtual void initialise(Context&, const LinearUse&) const {}
  // Computes y again: as G = dyᵀ x, row i of G ∘ W and column i of dy ∘ y have the same sum.
  void add_scale(const Gradient& g, const Tensor& d) const override;

  // d [1, size] += the gradient of g.product_parameters[place], where g is what backward() gave.
  virtual void add_parameter_gradient(const Gradient& g, size_t place, const Tensor& d) const;

  // For parameters with begins_from_data, in every step. Adds to row 0 of d [2, size] the values
  // that the tokens of g suggest for g.product_parameters[place], times the number of tokens, and
  // to row 1 that number. Adds nothing once the data no longer decide. The parameter is then set to
  // the mean over the step, however that was cut into micro-batches and ranks.
  virtual void add_parameter_start(const Gradient& g, size_t place, const Tensor& d) const;
};

// A row of the table of products.
struct ProductEntry {
  const char* name;
  std::span<const OptionSpec> options;  // that only it reads
  // Throws Error(device) where these ops lack what it needs.
  std::unique_ptr<const Product> (*make)(const OptionSet& options, const Ops& ops);
  // Throws Error(usage) for options that contradict each other, as make() does; null: none do.
  void (*check)(const OptionSet& options) = nullptr;
};
std::span<const ProductEntry> all_products();

// The row of that name; "auto" is f32: exact first. Throws Error(usage) for an unknown name.
const ProductEntry& find_product(std::string_view name);

// y = W[indices]: the embedding. Its gradient offers add_dw alone.
const Contributor& gather_contributor();

}  // namespace jackscrew
