// Matrices of Eigen.
#pragma once

#include <Eigen/Eigenvalues>

#include "tensor/tensor.h"

namespace jackscrew {

using FloatMatrix = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

inline Tensor view_of(FloatMatrix& matrix) {
  return {matrix.data(), DType::f32, {matrix.rows(), matrix.cols()}};
}

// The squares of the singular values of `matrix`, ascending, and its right singular vectors, as the
// eigenvalues and eigenvectors of its Gram matrix: Eigen's SVD takes three times as long to
// compile.
inline Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd> right_singular(
    const Eigen::MatrixXd& matrix) {
  return Eigen::SelfAdjointEigenSolver<Eigen::MatrixXd>(matrix.transpose() * matrix);
}

}  // namespace jackscrew
