// What the inputs of a linear layer say of its rounding: H = sum of xᵀ x over calibration tokens. A
// change D [out, in] of the weight changes the outputs by the sum of squares trace(D H Dᵀ).
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "tensor/memory.h"

namespace jackscrew {

class Hessian {
 public:
  // Takes two matrices f32 [cols, cols] from `memory`, of the CPU: sums, and what becomes of them.
  Hessian(Memory& memory, int64_t cols);

  int64_t cols() const { return sum_.view().cols(); }
  int64_t tokens() const { return tokens_; }
  // Adds xᵀ x of x [tokens, cols], f32 or bf16. The bits do not depend on threads.
  void add(Ops& ops, const Tensor& x);
  // All has been added: brings the lower half, which add() fills, into the upper. Throws
  // Error(non_finite) where an activation was.
  void finish(const char* where);
  // H, f32 [cols, cols]; after finish().
  const Tensor& matrix() const { return sum_.view(); }

  // The columns by falling mean square of their input; equal ones in order.
  std::vector<int32_t> falling_order() const;

 private:
  OwnedTensor sum_;
  int64_t tokens_ = 0;
};

// trace(D H Dᵀ) for d f32 [rows, cols]; `product`, of its shape, is overwritten.
double output_error(Ops& ops, const Tensor& d, const Tensor& h, const Tensor& product);

// The upper U of (H + damping mean(diag H) I)^-1 = Uᵀ U, rows and columns in the given order
// (empty: their own): row i of it says how an error in column i is made up for by those after it
// (Frantar et al. 2023, GPTQ, algorithm 1). The matrix is factored in blocks from its last column
// on, H = R Rᵀ with R upper, and U is R^-1: nothing is inverted but triangles.
struct InverseFactor {
  OwnedTensor u;       // f32 [cols, cols], zeros below the diagonal
  double damping = 0;  // with which it is: ten times what was asked for where that was singular
};
// Throws Error(non_finite) where no damping up to the mean of the diagonal helps.
InverseFactor inverse_factor(Ops& ops, Memory& memory, const Tensor& h,
                             const std::vector<int32_t>& order, double damping);

}  // namespace jackscrew
