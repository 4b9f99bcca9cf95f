// Products: the arithmetic of y = x Wᵀ and of its gradients, for a weight in any storage format.
// Adding one is a pair of files here and a row of the table in product.cc.
#pragma once

#include <memory>
#include <span>
#include <string_view>

#include "products/gradient.h"

namespace jackscrew {

// An input made ready for a product once and shared by the weights that read it (q, k and v).
struct Operand {
  Tensor x;            // [tokens, in], in the product's activation_dtype()
  Int8Rows rows = {};  // the same in bytes, for a product of bytes
};

class Product : public Contributor {
 public:
  virtual const char* name() const = 0;
  // What lies between two products, and its gradient, may be rounded to: f32 or bf16.
  virtual DType activation_dtype() const = 0;
  // What attention's products may round their operands to: f32 or bf16.
  virtual DType attention_operands() const = 0;

  // x is f32 or of activation_dtype(). What is made of it lies in context.scratch, whose frame the
  // caller holds.
  virtual Operand prepare(Context& context, const Tensor& x) const = 0;
  // y [tokens, out] (+)= x Wᵀ, f32 or of activation_dtype()
  virtual void forward(Context& context, const Operand& a, const Weight& weight, const Tensor& y,
                       Accumulate accumulate) const = 0;
  // The gradient operator for dy [tokens, out], f32 or of activation_dtype(). Casts dy once, into
  // context.scratch.
  virtual Gradient backward(Context& context, const Operand& a, const Tensor& dy,
                            const Weight& weight) const = 0;
};

// A row of the table of products.
struct ProductEntry {
  const char* name;
  // Throws Error(device) where these ops lack what it needs.
  const Product& (*make)(const Ops& ops);
};
std::span<const ProductEntry> all_products();

// The product of that name for these ops; "auto" is f32: exact first. Throws Error(usage) for an
// unknown name, and Error(device) as ProductEntry::make does.
const Product& find_product(std::string_view name, const Ops& ops);

// y = W[indices]: the embedding. Its gradient offers add_dw, add_left and add_right.
const Contributor& gather_contributor();

}  // namespace jackscrew
