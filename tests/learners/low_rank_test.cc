// The best product of two thin factors, against singular values in double.
#include "learners/low_rank.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/support/matrices.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

using Matrix = FloatMatrix;

Matrix random_matrix(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  return Matrix::NullaryExpr(rows, cols, [&] { return normal(random); });
}

class LowRankTest : public ::testing::Test {
 protected:
  struct Factors {
    Matrix a, b;
    double captured;
    Eigen::MatrixXd product(double scale) const {
      return scale * b.cast<double>() * a.cast<double>();
    }
  };
  Factors factors_of(Matrix& matrix, int64_t rank, double scale) {
    Factors out{Matrix(rank, matrix.cols()), Matrix(matrix.rows(), rank), 0.0};
    out.captured =
        approximate(context_, view_of(matrix), 1, 2, {view_of(out.a), view_of(out.b), scale});
    return out;
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{32} << 20};
  StepScalars scalars_{};
  Context context_{*ops_, scratch_, &scalars_};
};

// Noise is the hardest: no direction has much more than another.
TEST_F(LowRankTest, NearlyAllThatTheExactFactorsHaveOfNoise) {
  for (const auto& [rows, cols, rank] : {std::tuple(150, 96, 4), {96, 150, 16}, {200, 33, 20}}) {
    Matrix matrix = random_matrix(rows, cols, 3);
    const Factors found = factors_of(matrix, rank, 0.5);
    const Eigen::MatrixXd exact = matrix.cast<double>();
    const double best = right_singular(exact).eigenvalues().tail(rank).sum();
    const double left = (exact - found.product(0.5)).squaredNorm();
    EXPECT_GE(exact.squaredNorm() - left, 0.97 * best) << rows << " x " << cols;
    EXPECT_LE(exact.squaredNorm() - left, (1.0 + 1e-6) * best);
    EXPECT_NEAR(found.captured, exact.squaredNorm() - left, 1e-5 * best);
    for (int64_t i = 0; i < rank; ++i) {  // half of each singular value is in either factor
      EXPECT_NEAR(found.a.row(i).norm(), found.b.col(i).norm(), 1e-4 * found.a.row(i).norm());
    }
  }
}

// As many vectors as the smaller side has find all of it.
TEST_F(LowRankTest, ExactWhereTheMatrixIsSmall) {
  Matrix matrix = random_matrix(70, 24, 4);
  const Factors found = factors_of(matrix, 8, 2.0);
  const Eigen::MatrixXd exact = matrix.cast<double>();
  const Eigen::MatrixXd directions = right_singular(exact).eigenvectors().rightCols(8);
  const Eigen::MatrixXd best = exact * directions * directions.transpose();
  EXPECT_LE((found.product(2.0) - best).cwiseAbs().maxCoeff(), 1e-4);
}

// Fewer directions than the rank, down to one row and to none: what there is is found, and both
// factors can still learn.
TEST_F(LowRankTest, MatricesOfAFewDirections) {
  Matrix two = random_matrix(60, 2, 5) * random_matrix(2, 40, 6);
  Matrix row = Matrix::Zero(60, 40);
  row.row(7) = random_matrix(1, 40, 7);
  Matrix none = Matrix::Zero(60, 40);
  for (Matrix* matrix : {&two, &row, &none}) {
    const Factors found = factors_of(*matrix, 5, 1.0);
    EXPECT_LE((found.product(1.0) - matrix->cast<double>()).cwiseAbs().maxCoeff(), 2e-5);
    for (int64_t i = 0; i < 5; ++i) EXPECT_GT(found.a.row(i).norm(), 0.0f) << i;
    EXPECT_TRUE(found.a.allFinite());
  }
}

// A small problem in double, or the factors of a long matrix in f32.
TEST(LowRank, SaysWhatItTakesOfTheHost) {
  EXPECT_EQ(approximate_host_bytes(100, 100, 40), 4 * 8 * 80 * 80);
  EXPECT_EQ(approximate_host_bytes(1000, 200, 4), 4 * (1000 * 4 + 200 * 20 + 200 * 4));
}

}  // namespace
}  // namespace jackscrew
