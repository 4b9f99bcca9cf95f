// The products of a run: which one multiplies a weight, and what may be rounded between them.
#pragma once

#include <string>

#include "products/product.h"

namespace jackscrew {

class Arithmetic {
 public:
  // One product for every weight.
  explicit Arithmetic(std::unique_ptr<const Product> product);
  // As above, but in f32 where a pattern of `excluded` matches. A pattern is the name of a module
  // ("down_proj"), or an end of its path in the model in which * stands for any characters
  // ("layers.0.*"). Throws Error(usage) where the product is f32 itself, for a pattern that
  // matches none of `linears`, which are all that is multiplied, and where all of them are in f32.
  Arithmetic(std::unique_ptr<const Product> product, std::vector<std::string> excluded,
             std::span<const WeightSpec> linears);

  // The product of all weights that are not excluded.
  const Product& product() const { return *product_; }
  // Valid as long as this is. Weights with the same product can share an operand.
  const Product& product_of(const WeightSpec& weight) const;

  // See Product. Activations pass from one product to another, so their type is one that all
  // products take: f32 if anything is excluded. Attention has no weight, and goes by product().
  DType activation_dtype() const;
  DType attention_operands() const { return product_->operand_dtype(); }

 private:
  std::unique_ptr<const Product> product_;
  std::vector<std::string> excluded_;
};

}  // namespace jackscrew
