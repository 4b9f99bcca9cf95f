// Subspaces of the columns or rows of a gradient, or of a weight, as orthonormal bases. The work is
// f32 products on the device; only the small [rank, rank] matrices are factored, on the host and in
// double.
#pragma once

#include "kernels/context.h"

namespace jackscrew {

// Makes the columns of `basis`, f32 [size, rank] with rank <= size, orthonormal to about 1e-6
// without changing their span. Repeats Cholesky factorisations of the Gram matrix, shifted where
// the columns are nearly dependent (Fukaya et al. 2020, "Shifted CholeskyQR"). Throws
// Error(non_finite) for columns that are not finite, Error(generic) where a column is 0 or they are
// dependent.
void orthonormalise(Context& context, const Tensor& basis);

// Writes the left singular vectors of z, f32 [size, rank], in descending order, to `basis` of the
// same shape. Throws as orthonormalise() and exact_basis() do.
void principal_basis(Context& context, const Tensor& z, const Tensor& basis);

// Writes the first left singular vectors of op(g), f32 [size, other], in descending order, to
// `basis`, f32 [size, rank]: from the eigenvectors of op(g) op(g)ᵀ, in double, on one thread. For
// comparisons: it takes minutes where principal_basis() takes milliseconds. Throws
// Error(non_finite) where they are not found.
void exact_basis(Context& context, const Tensor& g, Transpose transpose, const Tensor& basis);

// Turns `basis` within its span to be the nearest to `target` (orthogonal Procrustes); both f32
// [size, rank], orthonormal.
void align_basis(Context& context, const Tensor& basis, const Tensor& target);

// The overlap of two subspaces, from the cosines c = oldᵀ new of their bases, f32 [rank, rank]:
// the mean squared cosine of the principal angles, 1 where the spans are equal, rank / size on
// average where they are unrelated. 0 on the plan device.
double overlap(Context& context, const Tensor& c);

// What these take of the host's memory at most, in no ledger, while they factor: matrices in
// double.
int64_t orthonormalise_host_bytes(int64_t rank);
int64_t principal_basis_host_bytes(int64_t rank);
// `rows` and `cols` are those of g.
int64_t exact_basis_host_bytes(int64_t rows, int64_t cols, Transpose transpose);
int64_t align_basis_host_bytes(int64_t rank);

}  // namespace jackscrew
