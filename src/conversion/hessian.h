// Second moments of a linear layer's inputs, H = sum of xᵀ x over calibration tokens. If its weight
// changes by D [out, in], the squared changes of the outputs add up to trace(D H Dᵀ).
#pragma once

#include <vector>

#include "kernels/ops.h"
#include "tensor/memory.h"

namespace jackscrew {

// The order in which the columns of a weight are rounded: first those that matter most, for whose
// errors the most columns can compensate.
enum class ColumnOrder : uint8_t {
  own,
  by_activation,  // by falling mean square of their input
  // In groups of 16, 32, 64 and 256 columns, as storage formats code them together: whole groups by
  // the sum of these mean squares, and within each those that it consists of.
  blocks_by_activation
};

// The bytes that an f32 [rows, cols] books.
int64_t booked_f32(int64_t rows, int64_t cols);

class Hessian {
 public:
  // Takes a matrix f32 [cols, cols] from `memory`, of the CPU.
  Hessian(Memory& memory, int64_t cols);

  int64_t cols() const { return sum_.view().cols(); }
  int64_t tokens() const { return tokens_; }
  // Adds xᵀ x of x [tokens, cols], f32 or bf16. The result does not depend on threads.
  void add(Ops& ops, const Tensor& x);
  // Call once after the last add(): mirrors the lower half, which add() fills, into the upper.
  // Throws Error(non_finite), naming `where`, if an activation was not finite.
  void finish(const char* where);
  // H, f32 [cols, cols]; after finish().
  const Tensor& matrix() const { return sum_.view(); }

  // The columns in that order; ties keep their own. Empty: their own throughout.
  std::vector<int32_t> order(ColumnOrder order) const;

 private:
  OwnedTensor sum_;
  int64_t tokens_ = 0;
};

// Returns trace(D H Dᵀ) for d, f32 [rows, cols]; `product`, of its shape, is overwritten.
double output_error(Ops& ops, const Tensor& d, const Tensor& h, const Tensor& product);

// The upper triangular U with (H + damping mean(diag H) I)^-1 = Uᵀ U, rows and columns in the given
// order (empty: their own). Row i says how the columns after i compensate for an error in column i
// (Frantar et al. 2023, GPTQ, algorithm 1). The matrix is factored in blocks from its last column
// on, H = R Rᵀ with R upper, and U is R^-1: only triangles are inverted.
struct InverseFactor {
  OwnedTensor u;       // f32 [cols, cols], zeros below the diagonal
  double damping = 0;  // that was used: raised tenfold until the matrix was not singular
};
// Throws Error(non_finite) where no damping up to the mean of the diagonal suffices.
InverseFactor inverse_factor(Ops& ops, Memory& memory, const Tensor& h,
                             const std::vector<int32_t>& order, double damping);
// The bytes that inverse_factor() books beside `u` while it computes.
int64_t inverse_factor_bytes(int64_t cols);

}  // namespace jackscrew
