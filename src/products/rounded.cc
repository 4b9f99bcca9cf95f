#include "products/rounded.h"

#include "products/dense.h"

namespace jackscrew {

void RoundedProduct::forward(Context& context, const Operand& a, const LinearUse& use,
                             const Tensor& y, Accumulate accumulate) const {
  if (is_single_token(a.x)) {
    f32_product().forward(context, a, use, y, accumulate);
  } else {
    rounded_forward(context, a, use, y, accumulate);
  }
}

void RoundedProduct::add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const {
  if (is_single_token(g.x)) {
    f32_product().add_dx(g, dx, accumulate);
  } else {
    rounded_dx(g, dx, accumulate);
  }
}

void RoundedProduct::add_dw(const Gradient& g, const Tensor& d) const {
  if (is_single_token(g.x)) {
    f32_product().add_dw(g, d);
  } else {
    rounded_dw(g, d);
  }
}

void RoundedProduct::add_left(const Gradient& g, const Tensor& p, const Tensor& r) const {
  if (is_single_token(g.x)) {
    f32_product().add_left(g, p, r);
  } else {
    rounded_left(g, p, r);
  }
}

void RoundedProduct::add_right(const Gradient& g, const Tensor& q, const Tensor& r) const {
  if (is_single_token(g.x)) {
    f32_product().add_right(g, q, r);
  } else {
    rounded_right(g, q, r);
  }
}

void RoundedProduct::rounded_left(const Gradient& g, const Tensor& p, const Tensor& r) const {
  f32_product().add_left(g, p, r);
}

void RoundedProduct::rounded_right(const Gradient& g, const Tensor& q, const Tensor& r) const {
  f32_product().add_right(g, q, r);
}

}  // namespace jackscrew
