// Bases of subspaces against what they are defined by, in double.
#include "learners/subspace.h"

#include <cmath>
#include <random>
#include <vector>

#include "tests/support/errors.h"
#include "tests/support/test_ops.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

struct Basis {
  int64_t rows, cols;
  std::vector<float> values;
  Basis(int64_t r, int64_t c) : rows(r), cols(c), values(static_cast<size_t>(r * c)) {}
  Tensor view() { return {values.data(), DType::f32, {rows, cols}}; }
  double at(int64_t r, int64_t c) const {
    return static_cast<double>(values[static_cast<size_t>(r * cols + c)]);
  }
  float& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
};

Basis random_basis(int64_t rows, int64_t cols, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Basis out(rows, cols);
  for (float& value : out.values) value = normal(random);
  return out;
}

// aᵀ b
Basis product_of_columns(const Basis& a, const Basis& b) {
  Basis out(a.cols, b.cols);
  for (int64_t i = 0; i < a.cols; ++i) {
    for (int64_t j = 0; j < b.cols; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < a.rows; ++k) sum += a.at(k, i) * b.at(k, j);
      out.at(i, j) = static_cast<float>(sum);
    }
  }
  return out;
}

double distance_from_identity(const Basis& square) {
  double worst = 0.0;
  for (int64_t i = 0; i < square.rows; ++i) {
    for (int64_t j = 0; j < square.cols; ++j) {
      worst = worse(worst, std::abs(square.at(i, j) - (i == j ? 1.0 : 0.0)));
    }
  }
  return worst;
}

// The mean squared cosine of two orthonormal bases: 1 where they span the same.
double alike(const Basis& a, const Basis& b) {
  const Basis c = product_of_columns(a, b);
  double sum = 0.0;
  for (const float value : c.values) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum / static_cast<double>(a.cols);
}

class Subspace : public ::testing::Test {
 protected:
  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 24};
  Context context_{*ops_, scratch_, nullptr};
};

TEST_F(Subspace, ColumnsBecomeOrthonormal) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{1, 1}, {7, 7}, {64, 16}, {130, 33}}) {
    Basis basis = random_basis(rows, cols, 1);
    const Basis before = basis;
    orthonormalise(context_, basis.view());
    EXPECT_LE(distance_from_identity(product_of_columns(basis, basis)), 1e-5) << rows;
    // Each column of before lies in the span: its coordinates have its length.
    const Basis coordinates = product_of_columns(basis, before);
    for (int64_t j = 0; j < cols; ++j) {
      double length = 0.0, found = 0.0;
      for (int64_t i = 0; i < rows; ++i) length += before.at(i, j) * before.at(i, j);
      for (int64_t i = 0; i < cols; ++i) found += coordinates.at(i, j) * coordinates.at(i, j);
      EXPECT_NEAR(found / length, 1.0, 1e-4) << rows << " column " << j;
    }
  }
}

// Columns that are nearly the same, and of lengths 10 decades apart.
TEST_F(Subspace, NearlyDependentColumnsToo) {
  Basis basis = random_basis(100, 12, 2);
  for (int64_t j = 1; j < 12; ++j) {
    for (int64_t i = 0; i < 100; ++i) {
      const double own = basis.at(i, j);
      basis.at(i, j) = static_cast<float>((basis.at(i, 0) + 1e-4 * own) *
                                          std::pow(10.0, static_cast<double>(j - 6)));
    }
  }
  orthonormalise(context_, basis.view());
  EXPECT_LE(distance_from_identity(product_of_columns(basis, basis)), 1e-5);
}

// Their squares are no numbers of f32.
TEST_F(Subspace, VeryShortAndVeryLongColumnsToo) {
  Basis plain = random_basis(30, 4, 8);
  for (const float size : {1e-30f, 1e-24f, 1e20f}) {
    Basis scaled = plain;
    for (float& x : scaled.values) x *= size;
    orthonormalise(context_, scaled.view());
    EXPECT_LE(distance_from_identity(product_of_columns(scaled, scaled)), 1e-5) << size;
  }
}

TEST_F(Subspace, RefusesWhatSpansNothing) {
  Basis zero = random_basis(20, 3, 3);
  for (int64_t i = 0; i < 20; ++i) zero.at(i, 1) = 0.0f;
  // Of what, the callers know: a gradient, a weight, its rounding error.
  expect_message(ErrorKind::generic, "a column of a subspace's basis is 0",
                 [&] { orthonormalise(context_, zero.view()); });
  Basis bad = random_basis(20, 3, 3);
  bad.at(4, 2) = std::nanf("");
  expect_message(ErrorKind::non_finite, "the basis of a subspace is not finite",
                 [&] { orthonormalise(context_, bad.view()); });
}

// G = U S Vᵀ with singular values 8, 4, 2 ... of known vectors.
struct Known {
  Basis u, v, g;
};
Known known(Context& context, int64_t rows, int64_t cols) {
  constexpr int64_t kRank = 6;
  Known out{random_basis(rows, kRank, 4), random_basis(cols, kRank, 5), Basis(rows, cols)};
  orthonormalise(context, out.u.view());
  orthonormalise(context, out.v.view());
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < cols; ++j) {
      double sum = 0.0;
      for (int64_t k = 0; k < kRank; ++k) {
        sum += out.u.at(i, k) * std::pow(2.0, static_cast<double>(3 - k)) * out.v.at(j, k);
      }
      out.g.at(i, j) = static_cast<float>(sum);
    }
  }
  return out;
}

TEST_F(Subspace, ExactBasesAreSingularVectorsInOrder) {
  Known k = known(context_, 40, 30);
  for (const Transpose transpose : {Transpose::no, Transpose::yes}) {
    Basis& wanted = transpose == Transpose::no ? k.u : k.v;
    Basis found(wanted.rows, 4);
    exact_basis(context_, k.g.view(), transpose, found.view());
    for (int64_t j = 0; j < 4; ++j) {
      double cosine = 0.0;
      for (int64_t i = 0; i < wanted.rows; ++i) cosine += wanted.at(i, j) * found.at(i, j);
      EXPECT_NEAR(std::abs(cosine), 1.0, 1e-5) << j;
    }
  }
}

// Power iterations of one gradient come to its singular vectors, in order, from any beginning.
TEST_F(Subspace, PowerIterationsConverge) {
  Known k = known(context_, 40, 30);
  Basis exact(30, 4), basis = random_basis(30, 4, 6);
  exact_basis(context_, k.g.view(), Transpose::yes, exact.view());
  orthonormalise(context_, basis.view());
  double before = 0.0;
  for (int round = 0; round < 12; ++round) {
    Basis r(40, 4), z(30, 4);
    ops_->gemm(k.g.view(), Transpose::no, basis.view(), Transpose::no, r.view(), Accumulate::no);
    ops_->gemm(k.g.view(), Transpose::yes, r.view(), Transpose::no, z.view(), Accumulate::no);
    principal_basis(context_, z.view(), basis.view());
    const double now = alike(exact, basis);
    EXPECT_GE(now, before - 1e-5);
    before = now;
  }
  EXPECT_NEAR(before, 1.0, 1e-5);
  for (int64_t j = 0; j < 4; ++j) {
    double cosine = 0.0;
    for (int64_t i = 0; i < 30; ++i) cosine += exact.at(i, j) * basis.at(i, j);
    EXPECT_NEAR(std::abs(cosine), 1.0, 1e-3) << j;
  }
}

TEST_F(Subspace, AligningTurnsWithinTheSpan) {
  Basis target = random_basis(50, 8, 7);
  orthonormalise(context_, target.view());
  Basis turn = random_basis(8, 8, 8), basis(50, 8);
  orthonormalise(context_, turn.view());
  ops_->gemm(target.view(), Transpose::no, turn.view(), Transpose::no, basis.view(),
             Accumulate::no);
  align_basis(context_, basis.view(), target.view());
  for (size_t i = 0; i < basis.values.size(); ++i) {
    EXPECT_NEAR(basis.values[i], target.values[i], 1e-5f);
  }
}

// What of a basis has no counterpart in the target stays orthonormal.
TEST_F(Subspace, AligningKeepsABasisOrthonormal) {
  Basis target = random_basis(50, 8, 7), basis = random_basis(50, 8, 8);
  orthonormalise(context_, target.view());
  // Five columns of the basis are orthogonal to the target, three are its own.
  for (int64_t i = 0; i < 50; ++i) {
    for (int64_t j = 0; j < 3; ++j) basis.at(i, j) = target.at(i, j + 1);
  }
  for (int64_t j = 3; j < 8; ++j) {
    for (int64_t k = 0; k < 8; ++k) {
      float cosine = 0.0f;
      for (int64_t i = 0; i < 50; ++i) cosine += basis.at(i, j) * target.at(i, k);
      for (int64_t i = 0; i < 50; ++i) basis.at(i, j) -= cosine * target.at(i, k);
    }
  }
  orthonormalise(context_, basis.view());
  align_basis(context_, basis.view(), target.view());
  Basis cosines = product_of_columns(basis, basis), with_target = product_of_columns(basis, target);
  for (int64_t i = 0; i < 8; ++i) {
    for (int64_t j = 0; j < 8; ++j) EXPECT_NEAR(cosines.at(i, j), i == j, 1e-5f) << i << " " << j;
    const bool is_shared = i >= 1 && i <= 3;
    EXPECT_NEAR(with_target.at(i, i), is_shared, 1e-5f) << i;
  }
}

TEST_F(Subspace, OverlapsAreSharesOfTheSpan) {
  Basis a = random_basis(60, 12, 9), b = random_basis(60, 12, 10);
  orthonormalise(context_, a.view());
  orthonormalise(context_, b.view());
  Basis c = product_of_columns(a, b);
  EXPECT_NEAR(overlap(context_, c.view()), alike(a, b), 1e-6);
  Basis one = product_of_columns(a, a);
  EXPECT_NEAR(overlap(context_, one.view()), 1.0, 1e-5);
}

}  // namespace
}  // namespace jackscrew
