// What products that round their operands to integers share: a single token is computed in f32. It
// is bound by reading the weight, which rounding would not make faster.
#pragma once

#include "products/product.h"

namespace jackscrew {

class RoundedProduct : public Product {
 public:
  DType activation_dtype() const final { return DType::f32; }
  void forward(Context& context, const Operand& a, const LinearUse& use, const Tensor& y,
               Accumulate accumulate) const final;
  void add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const final;
  void add_dw(const Gradient& g, const Tensor& d) const final;
  void add_left(const Gradient& g, const Tensor& p, const Tensor& r) const final;
  void add_right(const Gradient& g, const Tensor& q, const Tensor& r) const final;

 protected:
  static bool is_single_token(const Tensor& x) { return x.rows() == 1; }

 private:
  // The same for several tokens.
  virtual void rounded_forward(Context& context, const Operand& a, const LinearUse& use,
                               const Tensor& y, Accumulate accumulate) const = 0;
  virtual void rounded_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const = 0;
  virtual void rounded_dw(const Gradient& g, const Tensor& d) const = 0;
  // In f32, unless a product has them otherwise.
  virtual void rounded_left(const Gradient& g, const Tensor& p, const Tensor& r) const;
  virtual void rounded_right(const Gradient& g, const Tensor& q, const Tensor& r) const;
};

}  // namespace jackscrew
