// The gradient of a weight as an operator: nothing is formed until a learner asks for it, and a
// learner asks only for what it needs. G stands for the weight's gradient dW [out, in].
#pragma once

#include <span>
#include <vector>

#include "kernels/context.h"
#include "quant/weight.h"

namespace jackscrew {

class Gradient;

// A use of a weight in the model (a linear product, a gather of rows, a norm), which can add its
// share of the gradient in several forms. A form that a use does not have throws Error(usage)
// naming the weight.
class Contributor {
 public:
  virtual ~Contributor() = default;
  // dx [tokens, in] (+)= dy W, f32 or of the dtype of dy. The input's gradient, not the weight's.
  virtual void add_dx(const Gradient& g, const Tensor& dx, Accumulate accumulate) const;
  // d [out, in] += G
  virtual void add_dw(const Gradient& g, const Tensor& d) const = 0;
  // r [in, rank] += Gᵀ p for p [out, rank], without forming G
  virtual void add_left(const Gradient& g, const Tensor& p, const Tensor& r) const;
  // r [out, rank] += G q for q [in, rank], without forming G
  virtual void add_right(const Gradient& g, const Tensor& q, const Tensor& r) const;
  // d [out] += the row sums of G ∘ W, without forming G: the gradient of a factor on every row of W
  virtual void add_scale(const Gradient& g, const Tensor& d) const;
  // For a parameter that a product keeps: see Product::add_parameter_start
  virtual void add_start(const Gradient& g, const Tensor& d) const;
};

// A value that lives for one backward call; its tensors belong to the caller's arena.
class Gradient {
 public:
  Gradient(Context& context, const Contributor& contributor, const Weight& weight)
      : context_(context), contributor_(contributor), weight_(weight) {}

  void add_dx(const Tensor& dx, Accumulate accumulate) const {
    contributor_.add_dx(*this, dx, accumulate);
  }
  void add_dw(const Tensor& d) const { contributor_.add_dw(*this, d); }
  void add_left(const Tensor& p, const Tensor& r) const { contributor_.add_left(*this, p, r); }
  void add_right(const Tensor& q, const Tensor& r) const { contributor_.add_right(*this, q, r); }
  void add_scale(const Tensor& d) const { contributor_.add_scale(*this, d); }
  void add_start(const Tensor& d) const { contributor_.add_start(*this, d); }

  Context& context() const { return context_; }
  const Weight& weight() const { return weight_; }

  // The data of the use, set by whoever makes the Gradient. Learners read x and dy, which of a
  // linear product are both f32 or both bf16, and positions.
  Tensor x;  // [tokens, in], the input; empty for a gather
  // Rotated x in codes, as int4 and w4a8 multiplied it, which alone read it; empty of a single
  // token. int8 rounds x anew for its gradient.
  Int8Rows x_rows;
  Tensor dy;         // [tokens, out], the output's gradient
  Tensor indices;    // i32 [tokens], the rows of a gather
  Tensor positions;  // i32 [tokens], of a gather: within their sequences
  Tensor rstd;       // f32 [tokens], the statistic of a norm
  std::span<const Weight* const> product_parameters;  // of a linear product: see LinearUse
  Tensor ready;                                       // of a linear product: see LinearUse
  std::vector<Tensor> kept;  // computed from them by a product, which alone reads it

 private:
  Context& context_;
  const Contributor& contributor_;
  const Weight& weight_;
};

}  // namespace jackscrew
