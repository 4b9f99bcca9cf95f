#include "learners/subspace.h"

#include <Eigen/Cholesky>
#include <Eigen/Eigenvalues>
#include <Eigen/QR>
#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "kernels/add_scaled.h"
#include "optim/squares.h"

namespace jackscrew {

namespace {

using Matrix = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

Matrix on_host(Context& context, const Tensor& matrix) {
  FloatMatrix values(matrix.rows(), matrix.cols());
  context.ops.copy(Tensor(values.data(), DType::f32, {matrix.rows(), matrix.cols()}), matrix);
  return values.cast<double>();
}

void to_device(Context& context, const Matrix& from, const Tensor& to) {
  FloatMatrix values = from.cast<float>();
  context.ops.copy(to, Tensor(values.data(), DType::f32, {to.rows(), to.cols()}));
}

// Of a matrix on the host.
int64_t bytes_in_double(int64_t rows, int64_t cols) {
  return rows * cols * static_cast<int64_t>(sizeof(double));
}
int64_t bytes_in_float(int64_t rows, int64_t cols) {
  return rows * cols * static_cast<int64_t>(sizeof(float));
}

Tensor square(Context& context, int64_t size) {
  return context.scratch.tensor(DType::f32, {size, size});
}

// basis <- basis · factor
void multiply_from_right(Context& context, const Tensor& basis, const Tensor& factor) {
  const Arena::Frame frame(context.scratch);
  const Tensor product = context.scratch.tensor(DType::f32, {basis.rows(), basis.cols()});
  context.ops.gemm(basis, Transpose::no, factor, Transpose::no, product, Accumulate::no);
  context.ops.copy(basis, product);
}

// Brings a basis whose squares would leave f32's range to a length of about 1, exactly: by a power
// of 2.
void bring_into_range(Context& context, const Tensor& basis) {
  const double length = std::sqrt(squared_norm(context, basis));
  if (!(length > 0.0 && std::isfinite(length))) return;
  const int exponent = std::ilogb(length);
  constexpr int kSafe = 20;  // the squares of columns a millionth as long are in range, too
  constexpr int kLargestFactor = 126;
  if (std::abs(exponent) <= kSafe) return;
  const Arena::Frame frame(context.scratch);
  const Tensor scaled = context.scratch.tensor(DType::f32, {basis.rows(), basis.cols()});
  context.ops.zero(scaled);
  add_scaled(context.ops, scaled, basis,
             std::ldexp(1.0, std::clamp(-exponent, -kLargestFactor, kLargestFactor)));
  context.ops.copy(basis, scaled);
}

// aᵀ b
Tensor cosines(Context& context, const Tensor& a, const Tensor& b) {
  const Tensor out = context.scratch.tensor(DType::f32, {a.cols(), b.cols()});
  context.ops.gemm(a, Transpose::yes, b, Transpose::no, out, Accumulate::no);
  return out;
}

// The eigenvectors as columns, in descending order of their eigenvalues. What is given, the
// solver's eigenvectors and what is returned are three matrices at once.
Matrix descending_eigenvectors(const Matrix& symmetric) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(symmetric);
  if (solver.info() != Eigen::Success) {
    fail(ErrorKind::non_finite, "the eigenvectors of a matrix were not found");
  }
  return solver.eigenvectors().rowwise().reverse();
}

// The orthogonal matrix nearest to m, its polar factor: U Vᵀ of an SVD U S Vᵀ. V has the
// eigenvectors of mᵀ m, and m V has the columns of U, each as long as its singular value. The long
// ones come first, so that QR makes the short ones, which may be mostly rounding, orthogonal to
// them. Eigen's SVD would say it in one line, and compiles for a minute.
Matrix nearest_rotation(const Matrix& m) {
  const Matrix v = descending_eigenvectors(m.transpose() * m);
  const Eigen::HouseholderQR<Matrix> qr(m * v);
  const Matrix q = qr.householderQ();
  const auto signs =
      qr.matrixQR().diagonal().unaryExpr([](double value) { return std::copysign(1.0, value); });
  return q * signs.asDiagonal() * v.transpose();
}

}  // namespace

void orthonormalise(Context& context, const Tensor& basis) {
  bring_into_range(context, basis);
  const Arena::Frame frame(context.scratch);
  const int64_t rank = basis.cols();
  const Tensor factor = square(context, rank);
  // Dot products of unit columns have errors of some 1e-7 each, eigenvalues of rank times that.
  // Where eigenvalues are that small, a shift by as much keeps the Cholesky factor real. Each round
  // raises the eigenvalues below the shift by its inverse, 1e4 at rank 1000, until none is left.
  const double shift = 1e-7 * static_cast<double>(rank);
  constexpr double kOrthonormal = 1e-5;
  constexpr int kRounds = 12;
  for (int round = 0; round < kRounds; ++round) {
    context.ops.gemm(basis, Transpose::yes, basis, Transpose::no, factor, Accumulate::no);
    if (context.ops.plans_only()) return multiply_from_right(context, basis, factor);
    Matrix gram = on_host(context, factor);
    if (!gram.allFinite()) {
      fail(ErrorKind::non_finite, "the basis of a subspace is not finite");
    }
    const bool done = (gram - Matrix::Identity(rank, rank)).cwiseAbs().maxCoeff() < kOrthonormal;
    if (done) return;
    if (gram.diagonal().minCoeff() <= 0.0) {
      fail(ErrorKind::generic, "a column of a subspace's basis is 0");
    }
    const Eigen::VectorXd unit = gram.diagonal().cwiseSqrt().cwiseInverse();
    gram = unit.asDiagonal() * gram * unit.asDiagonal();
    Eigen::LLT<Matrix> cholesky(gram);
    const double least = Matrix(cholesky.matrixLLT()).diagonal().cwiseAbs2().minCoeff();
    if (cholesky.info() != Eigen::Success || !(least > 10.0 * shift)) {
      gram.diagonal().array() += shift;
      cholesky.compute(gram);
    }
    // The factor on the columns: diag(unit) times the inverse of Lᵀ.
    Matrix inverse = unit.asDiagonal();
    cholesky.matrixU().solveInPlace<Eigen::OnTheRight>(inverse);
    to_device(context, inverse, factor);
    multiply_from_right(context, basis, factor);
  }
  fail(ErrorKind::generic, "the columns of a subspace's basis are dependent");
}

int64_t orthonormalise_host_bytes(int64_t rank) {
  // The Gram matrix, its Cholesky factor and the inverse, which then is rounded to f32.
  return 3 * bytes_in_double(rank, rank) + bytes_in_float(rank, rank);
}

void principal_basis(Context& context, const Tensor& z, const Tensor& basis) {
  context.ops.copy(basis, z);
  orthonormalise(context, basis);
  const Arena::Frame frame(context.scratch);
  const Tensor factor = cosines(context, basis, z);
  if (!context.ops.plans_only()) {
    const Matrix s = on_host(context, factor);
    to_device(context, descending_eigenvectors(s * s.transpose()), factor);
  }
  multiply_from_right(context, basis, factor);
}

int64_t principal_basis_host_bytes(int64_t rank) {
  // s and the three of its eigenvectors: more than orthonormalise() takes.
  return 4 * bytes_in_double(rank, rank);
}

void exact_basis(Context& context, const Tensor& g, Transpose transpose, const Tensor& basis) {
  if (context.ops.plans_only()) return;
  Matrix values = on_host(context, g);
  if (transpose == Transpose::yes) values.transposeInPlace();
  const Matrix vectors = descending_eigenvectors(values * values.transpose());
  to_device(context, vectors.leftCols(basis.cols()), basis);
}

int64_t exact_basis_host_bytes(int64_t rows, int64_t cols, Transpose transpose) {
  const bool turns = transpose == Transpose::yes;
  const int64_t side = turns ? cols : rows;
  // The values beside their f32 form, or their transpose; later beside the three of eigenvectors.
  const int64_t copy = turns ? bytes_in_double(rows, cols) : bytes_in_float(rows, cols);
  return bytes_in_double(rows, cols) + std::max(copy, 3 * bytes_in_double(side, side));
}

void align_basis(Context& context, const Tensor& basis, const Tensor& target) {
  const Arena::Frame frame(context.scratch);
  const Tensor factor = cosines(context, basis, target);
  if (!context.ops.plans_only()) {
    to_device(context, nearest_rotation(on_host(context, factor)), factor);
  }
  multiply_from_right(context, basis, factor);
}

int64_t align_basis_host_bytes(int64_t rank) {
  // At the end of nearest_rotation(): m, v, the QR, q, q with its signs, and the rotation.
  return 6 * bytes_in_double(rank, rank);
}

double overlap(Context& context, const Tensor& c) {
  if (context.ops.plans_only()) return 0.0;
  return on_host(context, c).squaredNorm() / static_cast<double>(c.cols());
}

}  // namespace jackscrew
