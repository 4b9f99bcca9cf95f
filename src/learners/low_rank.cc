#include "learners/low_rank.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/error.h"
#include "kernels/add_scaled.h"
#include "learners/lora.rows.h"
#include "learners/subspace.h"
#include "optim/squares.h"

namespace jackscrew {

namespace {

// Least oversampling, and rounds of the iteration. Rounding errors have a flat spectrum: over
// matrices of SmolLM2 and their NF4 rounding errors, at ranks 8, 16 and 64, these settings capture
// 0.971 to 1.000 of what the exact factors capture; four rounds reach 0.95, eight 0.98.
constexpr int64_t kMoreVectors = 16;
constexpr int kRounds = 6;
// Noise of this share of a column's length keeps the columns independent where the matrix has a
// lower rank than is asked for.
constexpr double kNoise = 1e-6;

// The columns of the subspace that is iterated.
int64_t iterated_vectors(int64_t rows, int64_t cols, int64_t rank) {
  return std::min({rank + std::max(rank, kMoreVectors), rows, cols});
}

// Uniform in [-1, 1).
void fill_at_random(Context& context, uint64_t seed, uint32_t tensor, const Tensor& to) {
  context.ops.launch(LoraInit{to.data<float>(), seed, to.cols(), tensor, 1.0f}, to.rows());
}

// to = op(matrix) from + a little noise
void multiply_noisily(Context& context, const Tensor& matrix, Transpose transpose,
                      const Tensor& from, const Tensor& noise, const Tensor& to) {
  context.ops.gemm(matrix, transpose, from, Transpose::no, to, Accumulate::no);
  const double length = std::sqrt(squared_norm(context, to) / static_cast<double>(to.size()));
  add_scaled(context.ops, to, noise.rows(0, to.rows()), kNoise * length);
}

std::vector<float> values_of(Context& context, const Tensor& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.size()));
  context.ops.copy(Tensor(values.data(), DType::f32, {tensor.rows(), tensor.cols()}), tensor);
  return values;
}

}  // namespace

double approximate(Context& context, const Tensor& matrix, uint64_t seed, uint32_t tensor,
                   const LoraFactors& factors) {
  const auto& [a, b, scale] = factors;
  const Arena::Frame frame(context.scratch);
  const int64_t rows = matrix.rows(), cols = matrix.cols(), rank = a.rows();
  const double square = squared_norm(context, matrix);
  if (!std::isfinite(square)) fail(ErrorKind::non_finite, "a matrix is not finite");
  if (square == 0.0 && !context.ops.plans_only()) {
    fill_at_random(context, seed, tensor, a);
    context.ops.zero(b);
    return 0.0;
  }
  const int64_t vectors = iterated_vectors(rows, cols, rank);
  const Tensor left = context.scratch.tensor(DType::f32, {rows, vectors});
  const Tensor right = context.scratch.tensor(DType::f32, {cols, vectors});
  const Tensor noise = context.scratch.tensor(DType::f32, {std::max(rows, cols), vectors});
  fill_at_random(context, seed, tensor, noise);
  context.ops.copy(left, noise.rows(0, rows));
  orthonormalise(context, left);
  for (int round = 0; round < kRounds; ++round) {
    multiply_noisily(context, matrix, Transpose::yes, left, noise, right);
    orthonormalise(context, right);
    multiply_noisily(context, matrix, Transpose::no, right, noise, left);
    orthonormalise(context, left);
  }
  const Tensor seen = context.scratch.tensor(DType::f32, {cols, vectors});
  multiply_noisily(context, matrix, Transpose::yes, left, noise, seen);
  principal_basis(context, seen, right);
  context.ops.gemm(matrix, Transpose::no, right.columns(0, rank), Transpose::no, b, Accumulate::no);

  // The columns of b are left singular vectors times their singular values, those of `right` are
  // right singular vectors.
  std::vector<float> b_values = values_of(context, b);
  const std::vector<float> directions = values_of(context, right);
  std::vector<float> a_values(static_cast<size_t>(a.size()));
  double captured = 0.0, largest = 0.0;
  for (int64_t i = 0; i < rank && !context.ops.plans_only(); ++i) {
    double sum = 0.0;
    for (int64_t j = i; j < b.size(); j += rank) {
      sum += std::pow(static_cast<double>(b_values[static_cast<size_t>(j)]), 2.0);
    }
    captured += sum;
    largest = std::max(largest, sum);
    // A direction of noise alone starts with a zero column in b and a row as long as the longest in
    // a, so that b can learn.
    const bool empty = sum <= kNoise * kNoise * largest;
    const double root = std::sqrt(std::sqrt(empty ? largest : sum) / scale);
    for (int64_t j = 0; j < cols; ++j) {
      a_values[static_cast<size_t>(i * cols + j)] = static_cast<float>(
          root * static_cast<double>(directions[static_cast<size_t>(j * vectors + i)]));
    }
    for (int64_t j = i; j < b.size(); j += rank) {
      float& value = b_values[static_cast<size_t>(j)];
      value = empty ? 0.0f : static_cast<float>(static_cast<double>(value) / (root * scale));
    }
  }
  context.ops.copy(a, Tensor(a_values.data(), DType::f32, {rank, cols}));
  context.ops.copy(b, Tensor(b_values.data(), DType::f32, {rows, rank}));
  return captured;
}

int64_t approximate_host_bytes(int64_t rows, int64_t cols, int64_t rank) {
  const int64_t vectors = iterated_vectors(rows, cols, rank);
  // At the end b, the directions and a, in f32.
  const int64_t values = rows * rank + cols * vectors + rank * cols;
  return std::max(principal_basis_host_bytes(vectors),
                  values * static_cast<int64_t>(sizeof(float)));
}

}  // namespace jackscrew
