// The int8 product against plain arithmetic in double on operands that are rounded here, by a model
// of the rounding: what is left is the error of sums in f32.
#include "products/int8.h"

#include <array>
#include <cmath>
#include <cstring>
#include <string>

#include "kernels/cpu/cpu_ops.h"
#include "products/dense.h"
#include "tests/products/rounded.h"
#include "tests/support/small_panels.h"
#include "tests/support/test_ops.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

class Int8ProductTest : public ::testing::Test {
 protected:
  const Product& product() const { return *product_; }
  Context context(Ops& ops) { return {ops, scratch_, &scalars_, true}; }
  Context context() { return context(*ops_); }

  Weight make_weight(const char* format, const Matrix& values, const char* name = "the.weight") {
    Weight weight(memory_, {name, values.rows, values.cols}, find_format(format));
    Matrix copy = values;
    weight.publish(*ops_, copy.view(), {}, scratch_);
    return weight;
  }
  Matrix values_of(const Weight& weight) {
    Matrix out(weight.rows(), weight.cols());
    weight.decode(*ops_, 0, weight.rows(), out.view());
    return out;
  }
  Rounded rounded_weight(const Weight& weight) {
    Rounded out = to_nearest(values_of(weight), weight.cols(), 127);
    if (const Int8Rows stored = weight.as_int8_rows(); !stored.codes.empty()) {
      // Rounding once more gives the same codes, and scales that differ in their last bit.
      out.scales.assign(stored.scales.data<float>(), stored.scales.data<float>() + weight.rows());
    }
    return out;
  }

  // The gradient as the product rounds it: scaled by the weight's rows, in groups of columns,
  // stochastically with the numbers of the token.
  Rounded rounded_gradient(const Matrix& dy, const Rounded& w, const char* name,
                           int64_t first_token = 0) const {
    Matrix scaled = dy;
    for (int64_t t = 0; t < dy.rows; ++t) {
      for (int64_t n = 0; n < dy.cols; ++n) scaled.at(t, n) *= w.scales[static_cast<size_t>(n)];
    }
    return rounded(scaled, kInt8Group, ops_->int8_limit(), [&](int64_t t, int64_t n, float value) {
      return stochastic(value, gradient_uniform(scalars_, name, first_token + t, n, dy.cols));
    });
  }

  Matrix forward(const Weight& weight, Matrix x) {
    Context run = context();
    const Arena::Frame frame(scratch_);
    Matrix y(x.rows, weight.rows());
    product().forward(run, product().prepare(run, x.view()), weight, y.view(), Accumulate::no);
    return y;
  }
  Matrix input_gradient(const Weight& weight, Matrix dy, int64_t tokens_before = 0) {
    Context run = context();
    run.rows.first = tokens_before;
    const Arena::Frame frame(scratch_);
    Matrix x(dy.rows, weight.cols()), dx(dy.rows, weight.cols());
    const Gradient g = product().backward(run, product().prepare(run, x.view()), dy.view(), weight);
    g.add_dx(dx.view(), Accumulate::no);
    return dx;
  }

  void check(const Weight& weight, int64_t tokens, const std::string& name) {
    const Rounded w = rounded_weight(weight);
    Matrix x = random_matrix(tokens, weight.cols(), 3);
    // Columns far larger than the rest, a row of zeros, a row of tiny elements.
    for (int64_t t = 0; t < tokens; ++t) {
      x.at(t, weight.cols() / 2) *= 40.0f;
      for (int64_t k = 0; k < weight.cols() && t > 0 && t < 3; ++k) {
        x.at(t, k) *= t == 1 ? 0.0f : 1e-20f;
      }
    }
    Matrix dy = random_matrix(tokens, weight.rows(), 4);
    const Rounded rounded_x = to_nearest(x, kInt8Group, ops_->int8_limit());
    const Rounded rounded_dy = rounded_gradient(dy, w, weight.name().c_str());
    Context run = context();
    const Arena::Frame frame(scratch_);
    const Operand operand = product().prepare(run, x.view());
    const Gradient g = product().backward(run, operand, dy.view(), weight);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      const bool adds = accumulate == Accumulate::yes;
      const Matrix y_start = random_matrix(tokens, weight.rows(), 5);
      Matrix y = y_start;
      product().forward(run, operand, weight, y.view(), accumulate);
      const Exact exact_y =
          multiply(rounded_x.values, w.values.transposed(), adds ? &y_start : nullptr);
      EXPECT_LE(error_of(y, exact_y), kF32) << name << " y";
      const Matrix dx_start = random_matrix(tokens, weight.cols(), 6);
      Matrix dx = dx_start;
      g.add_dx(dx.view(), accumulate);
      const Exact exact_dx = multiply(rounded_dy.values, w.codes, adds ? &dx_start : nullptr);
      EXPECT_LE(error_of(dx, exact_dx), kF32) << name << " dx";
    }
  }

  std::unique_ptr<const Product> product_ = make_int8_product();
  std::unique_ptr<Ops> ops_ = std::make_unique<SmallPanelOps>(make_test_ops());
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{128} << 20};
  StepScalars scalars_ = [] {
    StepScalars scalars{};
    scalars.seed = 11;
    scalars.step = 3;
    return scalars;
  }();
};

TEST_F(Int8ProductTest, IsTheProductOfRoundedOperands) {
  for (const char* format : {"f32", "bf16", "int8", "int8_row", "int8_affine", "nf4"}) {
    for (const auto& [rows, cols] :
         {std::pair<int64_t, int64_t>{37, 45}, {1, 64}, {130, 96}, {65, 259}}) {
      const Weight weight = make_weight(format, random_matrix(rows, cols, 1));
      for (const int64_t tokens : {2, 19}) {
        check(weight, tokens, fmt::format("{} {}x{} {} tokens", format, rows, cols, tokens));
      }
    }
  }
  EXPECT_EQ(scratch_.used(), 0);
}

TEST_F(Int8ProductTest, WeightOfSeveralPanels) {
  for (const char* format : {"f32", "bf16", "int8_row"}) {
    check(make_weight(format, random_matrix(500, 333, 1)), 3, format);
  }
  // 192 rows of codes, and the same in f32.
  EXPECT_LT(scratch_.high_water(), 192 * 333 * 5 + (64 << 10));
}

// Constant operands are all codes at their limits.
TEST_F(Int8ProductTest, LargestCodesEverywhere) {
  Matrix w(70, 1024), x(5, 1024), dy(5, 70);
  for (size_t i = 0; i < w.values.size(); ++i) w.values[i] = i % 1024 < 512 ? 0.5f : -0.5f;
  for (size_t i = 0; i < x.values.size(); ++i) x.values[i] = i % 1024 < 512 ? 2.0f : -2.0f;
  for (float& value : dy.values) value = -3.0f;
  const Weight weight = make_weight("f32", w);
  const Matrix y = forward(weight, x);
  EXPECT_LE(error_of(y, multiply(x, w.transposed())), kF32);
  const Matrix dx = input_gradient(weight, dy);
  EXPECT_LE(error_of(dx, multiply(dy, w)), kF32);
}

// What rounding can do at most to the product of the numbers themselves: half a step for every
// number of x and W, a whole one for those of dy.
TEST_F(Int8ProductTest, ErrorIsWithinTheSteps) {
  const auto steps = [](const Matrix& m, int64_t group, int32_t limit) {
    return rounded(m, group, limit, [](int64_t, int64_t, float) { return 1.0f; }).values;
  };
  const auto widened = [](Matrix m, const Matrix& by, float share) {
    for (size_t i = 0; i < m.values.size(); ++i) {
      m.values[i] = std::abs(m.values[i]) + share * by.values[i];
    }
    return m;
  };
  const auto expect_within = [](const Matrix& actual, const Matrix& a, const Matrix& b,
                                const Matrix& wide_a, const Matrix& wide_b, const char* what) {
    const Exact exact = multiply(a, b);
    const Exact wide = multiply(wide_a, wide_b);
    double worst = 0.0;
    for (size_t i = 0; i < actual.values.size(); ++i) {
      const double error = std::abs(static_cast<double>(actual.values[i]) - exact.value[i]);
      worst = worse(worst, error / (wide.value[i] - exact.magnitude[i]));
    }
    EXPECT_LE(worst, 1.0) << what;
    EXPECT_GT(worst, 0.05) << what << ": the bound says nothing";
  };
  const Matrix w = random_matrix(90, 200, 1);
  const Matrix x = random_matrix(7, 200, 2);
  const Matrix dy = random_matrix(7, 90, 3);
  const Weight weight = make_weight("f32", w);
  const int32_t limit = ops_->int8_limit();
  const Matrix w_steps = steps(w, w.cols, 127);
  const Matrix wide_w = widened(w, w_steps, 0.5f);
  expect_within(forward(weight, x), x, w.transposed(),
                widened(x, steps(x, kInt8Group, limit), 0.5f), wide_w.transposed(), "y");

  // dy is rounded when it is scaled by the rows of W, of which codes remain.
  Matrix scaled = dy;
  Matrix codes = w;
  Matrix wide_codes = wide_w;
  for (int64_t n = 0; n < w.rows; ++n) {
    for (int64_t t = 0; t < dy.rows; ++t) scaled.at(t, n) *= w_steps.at(n, 0);
    for (int64_t k = 0; k < w.cols; ++k) {
      codes.at(n, k) /= w_steps.at(n, 0);
      wide_codes.at(n, k) /= w_steps.at(n, 0);
    }
  }
  expect_within(input_gradient(weight, dy), scaled, codes,
                widened(scaled, steps(scaled, kInt8Group, limit), 1.0f), wide_codes, "dx");
}

// Over many steps the mean of dx is that of the unrounded gradient with the rounded weight.
// Rounding to nearest would be off by several times the bound.
TEST_F(Int8ProductTest, InputGradientIsUnbiased) {
  constexpr int kSteps = 1500;
  const Weight weight = make_weight("f32", random_matrix(40, 24, 1));
  const Matrix dy = random_matrix(6, 40, 2);
  const Exact exact = multiply(dy, rounded_weight(weight).values);
  std::vector<double> sum(exact.value.size()), squares(exact.value.size());
  for (int step = 0; step < kSteps; ++step) {
    scalars_.step = static_cast<uint32_t>(step);
    const Matrix dx = input_gradient(weight, dy);
    for (size_t i = 0; i < sum.size(); ++i) {
      const double error = static_cast<double>(dx.values[i]) - exact.value[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  double chi_squared = 0.0;
  for (size_t i = 0; i < sum.size(); ++i) {
    EXPECT_GT(squares[i], 0.0);
    chi_squared += sum[i] * sum[i] / squares[i];  // of a standard normal variable
  }
  // On average 1. Elements of a token share their rounding; were they all the same, the average of
  // six tokens would still spread by sqrt(2 / 6) only. A constant error gives kSteps.
  EXPECT_LT(chi_squared / static_cast<double>(sum.size()), 2.5);
}

// Codes are those of the token, seed, step and weight, wherever and with whomever it is computed.
TEST_F(Int8ProductTest, RandomNumbersFollowTheToken) {
  const Weight weight = make_weight("f32", random_matrix(150, 70, 1));
  const Matrix dy = random_matrix(40, 150, 2);
  const Matrix whole = input_gradient(weight, dy, 100);
  Matrix first(17, 150), second(23, 150);
  std::copy_n(dy.values.begin(), first.values.size(), first.values.begin());
  std::copy_n(dy.values.end() - static_cast<ptrdiff_t>(second.values.size()), second.values.size(),
              second.values.begin());
  std::vector<float> parts = input_gradient(weight, first, 100).values;
  const std::vector<float> rest = input_gradient(weight, second, 117).values;
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole.values);

  EXPECT_NE(input_gradient(weight, dy, 101).values, whole.values);
  const Weight other = make_weight("f32", random_matrix(150, 70, 1), "another.weight");
  EXPECT_NE(input_gradient(other, dy, 100).values, whole.values);
  ++scalars_.step;
  EXPECT_NE(input_gradient(weight, dy, 100).values, whole.values);
  --scalars_.step;
  ++scalars_.seed;
  EXPECT_NE(input_gradient(weight, dy, 100).values, whole.values);
  --scalars_.seed;
  EXPECT_EQ(input_gradient(weight, dy, 100).values, whole.values);
}

TEST_F(Int8ProductTest, ThreadsDoNotChangeBits) {
  const Weight weight = make_weight("bf16", random_matrix(300, 96, 1));
  Matrix x = random_matrix(70, 96, 12);
  Matrix dy = random_matrix(70, 300, 13);
  std::vector<float> first;
  for (const int threads : {1, 2, 3}) {
    const auto ops = make_test_ops(threads);
    Context run = context(*ops);
    const Arena::Frame frame(scratch_);
    const Operand operand = product().prepare(run, x.view());
    Matrix y(70, 300), dx(70, 96);
    product().forward(run, operand, weight, y.view(), Accumulate::no);
    product().backward(run, operand, dy.view(), weight).add_dx(dx.view(), Accumulate::no);
    y.values.insert(y.values.end(), dx.values.begin(), dx.values.end());
    if (first.empty()) first = y.values;
    EXPECT_EQ(y.values, first) << threads << " threads";
  }
}

// One token, and gradients of weights, are the f32 product's.
TEST_F(Int8ProductTest, TheRestIsF32) {
  const Weight weight = make_weight("bf16", random_matrix(33, 70, 1));
  Matrix x = random_matrix(9, 70, 2), dy = random_matrix(9, 33, 3);
  Matrix p = random_matrix(33, 5, 4), q = random_matrix(70, 5, 5);
  Context run = context();
  const Arena::Frame frame(scratch_);
  std::array<std::vector<float>, 2> results;
  for (size_t i = 0; i < results.size(); ++i) {
    const Product& arithmetic = i == 0 ? product() : f32_product();
    const Tensor one = x.view().rows(0, 1);
    Matrix y(1, 33), dx(1, 70), d(33, 70), left(70, 5), right(33, 5);
    const Operand operand = arithmetic.prepare(run, one);
    arithmetic.forward(run, operand, weight, y.view(), Accumulate::no);
    arithmetic.backward(run, operand, dy.view().rows(0, 1), weight)
        .add_dx(dx.view(), Accumulate::no);
    const Gradient g =
        arithmetic.backward(run, arithmetic.prepare(run, x.view()), dy.view(), weight);
    g.add_dw(d.view());
    g.add_left(p.view(), left.view());
    g.add_right(q.view(), right.view());
    for (const Matrix* m : {&y, &dx, &d, &left, &right}) {
      results[i].insert(results[i].end(), m->values.begin(), m->values.end());
    }
  }
  EXPECT_EQ(results[0], results[1]);
}

// What is not finite shows in every result of its token, and in no other.
TEST_F(Int8ProductTest, NonFiniteElementsAreNotHidden) {
  const Weight weight = make_weight("f32", random_matrix(70, 130, 1));
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    Matrix x = random_matrix(3, 130, 2);
    Matrix dy = random_matrix(3, 70, 3);
    const Matrix good_y = forward(weight, x);
    const Matrix good_dx = input_gradient(weight, dy);
    x.at(1, 77) = bad;
    dy.at(1, 5) = bad;
    const Matrix y = forward(weight, x);
    const Matrix dx = input_gradient(weight, dy);
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t n = 0; n < 70; ++n) {
        if (t == 1) {
          EXPECT_FALSE(std::isfinite(y.at(t, n)));
        } else {
          EXPECT_EQ(y.at(t, n), good_y.at(t, n));
        }
      }
      for (int64_t k = 0; k < 130; ++k) {
        if (t == 1) {
          EXPECT_FALSE(std::isfinite(dx.at(t, k)));
        } else {
          EXPECT_EQ(dx.at(t, k), good_dx.at(t, k));
        }
      }
    }
  }
  // A weight that is not finite spoils the output's column and all of dx.
  Matrix values = random_matrix(70, 130, 1);
  values.at(7, 3) = std::nanf("");
  const Weight spoilt = make_weight("f32", values);
  const Matrix y = forward(spoilt, random_matrix(2, 130, 2));
  for (int64_t n = 0; n < 70; ++n) EXPECT_EQ(std::isfinite(y.at(0, n)), n != 7) << n;
  const Matrix dx = input_gradient(spoilt, random_matrix(2, 70, 3));
  for (const float value : dx.values) EXPECT_FALSE(std::isfinite(value));
}

}  // namespace
}  // namespace jackscrew
