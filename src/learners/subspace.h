// Subspaces of a gradient's columns or rows, as orthonormal bases. All is f32 products on the
// device; what is as large as a basis is wide, [rank, rank], is factored on the host, in double.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

// Makes the columns of `basis`, f32 [size, rank] with rank <= size, orthonormal to about 1e-6
// without changing what they span. Repeated Cholesky factors of the Gram matrix, shifted where the
// columns are nearly dependent (Fukaya et al. 2020, "Shifted CholeskyQR"). Throws
// Error(non_finite) for columns that are not finite, Error(generic) where one is 0.
void orthonormalise(Context& context, const Tensor& basis);

// Writes the left singular vectors of z, f32 [size, rank], in descending order, to `basis`, alike.
// As orthonormalise().
void principal_basis(Context& context, const Tensor& z, const Tensor& basis);

// The first left singular vectors of op(g), f32 [size, other], in descending order, to `basis`
// [size, rank]: by the eigenvectors of op(g) op(g)ᵀ, in double, on one thread. For comparisons: it
// takes minutes where principal_basis() takes milliseconds.
void exact_basis(Context& context, const Tensor& g, Transpose transpose, const Tensor& basis);

// Turns `basis` within its span towards `target`, both f32 [size, rank], orthonormal: the nearest
// to it (orthogonal Procrustes).
void align_basis(Context& context, const Tensor& basis, const Tensor& target);

// From the cosines c = oldᵀ new of two bases, f32 [rank, rank]: the mean squared cosine, 1 where
// both span the same, rank / size where they have nothing to do with each other. 0 on the plan
// device.
double overlap(Context& context, const Tensor& c);

}  // namespace jackscrew
