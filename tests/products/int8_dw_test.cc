// dW of the int8 product, where options ask for bytes there as well, against plain arithmetic in
// double on operands that are rounded here by a model of the rounding.
#include <cmath>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "products/dense.h"
#include "products/int8.h"
#include "quant/plain.h"
#include "tests/products/rounded.h"
#include "tests/support/products.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

class Int8WeightGradientTest : public ::testing::Test {
 protected:
  Context context(Ops& ops) { return {ops, scratch_, &scalars_, true}; }

  // start + dyᵀ x
  Matrix weight_gradient(Matrix x, Matrix dy, Matrix start, Ops& ops, int64_t tokens_before = 0) {
    Context run = context(ops);
    run.rows.first = tokens_before;
    const Weight weight(memory_, {"the.weight", dy.cols, x.cols}, f32_format());
    const Arena::Frame frame(scratch_);
    const Gradient g = product_->backward(run, product_->prepare(run, x.view()), dy.view(), weight);
    g.add_dw(start.view());
    return start;
  }
  Matrix weight_gradient(const Matrix& x, const Matrix& dy) {
    return weight_gradient(x, dy, Matrix(dy.cols, x.cols), *ops_);
  }

  // x with a scale for each column.
  static Matrix rounded_x(const Matrix& x) {
    return to_nearest(x.transposed(), x.rows, 127, ToCodes::multiplies).values.transposed();
  }
  Rounded rounded_gradient(const Matrix& dy, int64_t first_token = 0) const {
    return rounded_columns(dy, std::vector<float>(static_cast<size_t>(dy.rows), 1.0f),
                           ops_->int8_limit(), scalars_, "the.weight", first_token);
  }

  std::unique_ptr<Ops> ops_ = make_test_ops(1);
  std::unique_ptr<const Product> product_ = make_product("int8", *ops_, {{"int8_dw", "int8"}});
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{64} << 20};
  StepScalars scalars_ = [] {
    StepScalars scalars{};
    scalars.seed = 11;
    scalars.step = 3;
    return scalars;
  }();
};

TEST_F(Int8WeightGradientTest, IsTheProductOfRoundedOperands) {
  for (const auto& [tokens, out, in] : {std::array<int64_t, 3>{2, 37, 45},
                                        {64, 64, 64},
                                        {67, 130, 96},
                                        {203, 65, 259},
                                        {1024, 70, 33}}) {
    Matrix x = random_matrix(tokens, in, 3);
    Matrix dy = random_matrix(tokens, out, 4);
    // Columns far larger than the rest, of zeros, of tiny elements; and tokens of each kind.
    for (int64_t t = 0; t < tokens; ++t) {
      x.at(t, in / 2) *= 40.0f;
      x.at(t, 0) = 0.0f;
      x.at(t, 1) *= 1e-20f;
      dy.at(t, 0) = 0.0f;
      dy.at(t, out - 1) *= 1e-20f;
      dy.at(t, 1) *= t == 0 ? 100.0f : 1.0f;
    }
    const Matrix start = random_matrix(out, in, 5);
    const Matrix d = weight_gradient(x, dy, start, *ops_, 1000);
    EXPECT_LE(error_of(d, multiply(rounded_gradient(dy, 1000).values, rounded_x(x), &start)), kF32)
        << tokens << " tokens, " << out << " x " << in;
  }
  EXPECT_EQ(scratch_.used(), 0);
}

// Constant operands are all codes at their limits.
TEST_F(Int8WeightGradientTest, LargestCodesEverywhere) {
  Matrix x(1024, 70), dy(1024, 33);
  for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = i % 3 == 0 ? 2.0f : -2.0f;
  for (size_t i = 0; i < dy.values.size(); ++i) dy.values[i] = i % 2 == 0 ? 0.5f : -0.5f;
  EXPECT_LE(error_of(weight_gradient(x, dy), multiply(dy.transposed(), x)), kF32);
}

// Over many steps the mean is that of the unrounded gradient with the rounded input. Rounding to
// nearest would be off by several times the bound.
TEST_F(Int8WeightGradientTest, IsUnbiased) {
  constexpr int kSteps = 10000;
  const Matrix x = random_matrix(6, 24, 1);
  const Matrix dy = random_matrix(6, 40, 2);
  const Exact exact = multiply(dy.transposed(), rounded_x(x));
  std::vector<double> sum(exact.value.size()), squares(exact.value.size());
  for (int step = 0; step < kSteps; ++step) {
    scalars_.step = static_cast<uint32_t>(step);
    const Matrix d = weight_gradient(x, dy);
    for (size_t i = 0; i < sum.size(); ++i) {
      const double error = static_cast<double>(d.values[i]) - exact.value[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  double chi_squared = 0.0;
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_GT(squares[i], 0.0);
    chi_squared += sum[i] * sum[i] / squares[i];  // of a standard normal variable
  }
  // On average 1. Elements of a row share their rounding; were they all the same, the average of
  // forty rows would still spread by sqrt(2 / 40) only. A constant error gives kSteps.
  EXPECT_LT(chi_squared / static_cast<double>(sum.size()), 1.9);
}

TEST_F(Int8WeightGradientTest, RandomNumbersFollowTheTokenAndAreNotThoseOfDx) {
  const Matrix x = random_matrix(70, 33, 1);
  const Matrix dy = random_matrix(70, 90, 2);
  const Matrix start(90, 33);
  const std::vector<float> first = weight_gradient(x, dy, start, *ops_, 100).values;
  EXPECT_EQ(weight_gradient(x, dy, start, *ops_, 100).values, first);
  EXPECT_NE(weight_gradient(x, dy, start, *ops_, 101).values, first);
  ++scalars_.step;
  EXPECT_NE(weight_gradient(x, dy, start, *ops_, 100).values, first);
  --scalars_.step;
  ++scalars_.seed;
  EXPECT_NE(weight_gradient(x, dy, start, *ops_, 100).values, first);
  int64_t same = 0;
  for (int64_t t = 0; t < 70; ++t) {
    same += gradient_uniform(scalars_, "the.weight", t, t, 90) ==
                    gradient_uniform(scalars_, "the.weight of columns", t, t, 90)
                ? 1
                : 0;
  }
  EXPECT_LT(same, 3);
}

TEST_F(Int8WeightGradientTest, ThreadsDoNotChangeBits) {
  const Matrix x = random_matrix(150, 96, 12);
  const Matrix dy = random_matrix(150, 300, 13);
  const std::vector<float> first = weight_gradient(x, dy).values;
  for (const int threads : {2, 3}) {
    const auto ops = make_test_ops(threads);
    EXPECT_EQ(weight_gradient(x, dy, Matrix(300, 96), *ops).values, first) << threads << " threads";
  }
}

// What is not finite shows in every result of its column, of dy or of x, and in no other.
TEST_F(Int8WeightGradientTest, NonFiniteElementsAreNotHidden) {
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    Matrix x = random_matrix(70, 80, 2);
    Matrix dy = random_matrix(70, 90, 3);
    const Matrix good = weight_gradient(x, dy);
    x.at(65, 77) = bad;
    dy.at(1, 5) = bad;
    const Matrix d = weight_gradient(x, dy);
    for (int64_t n = 0; n < 90; ++n) {
      for (int64_t k = 0; k < 80; ++k) {
        if (n == 5 || k == 77) {
          EXPECT_FALSE(std::isfinite(d.at(n, k))) << n << " " << k;
        } else {
          EXPECT_EQ(d.at(n, k), good.at(n, k)) << n << " " << k;
        }
      }
    }
  }
}

// A single token, and what is projected, are the f32 product's.
TEST_F(Int8WeightGradientTest, TheRestIsF32) {
  for (const int64_t tokens : {1, 9}) {
    Matrix x = random_matrix(tokens, 70, 2), dy = random_matrix(tokens, 33, 3);
    Matrix p = random_matrix(33, 5, 4), q = random_matrix(70, 5, 5);
    const Weight weight(memory_, {"the.weight", 33, 70}, f32_format());
    Context run = context(*ops_);
    const Arena::Frame frame(scratch_);
    std::array<std::vector<float>, 2> results;
    for (size_t i = 0; i < results.size(); ++i) {
      const Product& arithmetic = i == 0 ? *product_ : f32_product();
      Matrix d(33, 70), left(70, 5), right(33, 5);
      const Gradient g =
          arithmetic.backward(run, arithmetic.prepare(run, x.view()), dy.view(), weight);
      if (tokens == 1) g.add_dw(d.view());
      g.add_left(p.view(), left.view());
      g.add_right(q.view(), right.view());
      for (const Matrix* m : {&d, &left, &right}) {
        results[i].insert(results[i].end(), m->values.begin(), m->values.end());
      }
    }
    EXPECT_EQ(results[0], results[1]);
  }
}

}  // namespace
}  // namespace jackscrew
