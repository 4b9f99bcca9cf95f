// The products int4 and w4a8 against plain arithmetic in double on operands that are transformed
// and rounded by a model of both: what is left is the error of sums in f32.
#include "products/arithmetic.h"
#include "products/dense.h"
#include "tests/products/int4_rig.h"
#include "tests/support/errors.h"

namespace jackscrew {
namespace {

// The model's sums of pairs are Sylvester's matrix: element i, j is negative where the bits that i
// and j share are odd in number.
TEST(Int4Model, SumsOfPairsAreTheMatrix) {
  std::vector<double> values(256);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<double>(i * i % 37) - 11.0;
  for (const size_t block : {size_t{1}, size_t{2}, size_t{8}, size_t{128}}) {
    const std::vector<double> fast = summed(values, static_cast<int64_t>(block));
    for (size_t i = 0; i < values.size(); ++i) {
      double expected = 0.0;
      for (size_t j = 0; j < block; ++j) {
        const double value = values[i / block * block + j];
        expected += __builtin_parityll(i % block & j) != 0 ? -value : value;
      }
      EXPECT_EQ(fast[i], expected);
    }
  }
}

TEST_P(Int4ProductTest, IsTheProductOfTransformedAndRoundedOperands) {
  for (const char* format : {"f32", "bf16", "int8", "int8_row", "nf4"}) {
    for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{37, 45},
                                     {1, 64},
                                     {130, 96},
                                     {65, 344},
                                     {20, 640},
                                     {66, 258}}) {
      const Weight weight = make_weight(format, random_matrix(rows, cols, 1));
      for (const int64_t tokens : {2, 19, 70}) {
        check(weight, tokens, largest_block(cols),
              fmt::format("{} {}x{} {} tokens", format, rows, cols, tokens));
      }
    }
  }
  EXPECT_EQ(scratch_.used(), 0);
}

TEST_P(Int4ProductTest, EveryBlock) {
  const Weight weight = make_weight("f32", random_matrix(40, 384, 1));
  for (const char* block : {"1", "16", "32", "64", "128"}) {
    product_ = with_block(block);
    check(weight, 17, std::stoll(block), fmt::format("block {}", block));
  }
}

// What is stored as int4_hadamard is multiplied as it lies: the same bits as of the numbers that it
// was encoded from, though decoded they are others. No code is cut off on the way, so that dW
// passes all of them.
TEST_P(Int4ProductTest, RowsOfInt4HadamardAreTheirOwnCodes) {
  for (const auto& [rows, cols] :
       {std::pair<int64_t, int64_t>{37, 46}, {130, 96}, {20, 640}, {66, 258}, {300, 384}}) {
    const Matrix values = random_matrix(rows, cols, 1);
    const Matrix x = random_matrix(19, cols, 2);
    const Matrix dy = random_matrix(19, rows, 3);
    const Results expected = run(make_weight("f32", values), x, dy);
    const Results results = run(make_weight("int4_hadamard", values), x, dy);
    EXPECT_EQ(results.y.values, expected.y.values) << rows << " x " << cols;
    EXPECT_EQ(results.dx.values, expected.dx.values) << rows << " x " << cols;
    const int64_t block = largest_block(cols);
    const Coded coded_x = coded(x, block, x_limit());
    const Rounded dy_columns =
        rounded_columns(dy, coded_x.steps, gradient_limit(), scalars_, "the.weight");
    Matrix everywhere(rows, cols);
    std::ranges::fill(everywhere.values, 1.0f);
    const Exact dw = back(multiply(dy_columns.values, coded_x.codes), everywhere, block, nullptr);
    EXPECT_LE(error_of(results.dw, dw), kF32) << rows << " x " << cols;
  }
  // With another block of the transform they are decoded first, as any others.
  product_ = with_block("16");
  check(make_weight("int4_hadamard", random_matrix(20, 640, 1)), 19, 16, "another block");
}

TEST_P(Int4ProductTest, WeightOfSeveralPanels) {
  check(make_weight("bf16", random_matrix(300, 384, 1)), 3, 128, "bf16");
}

TEST_P(Int4ProductTest, ExtremeRows) {
  Matrix w(70, 128), x(5, 128), dy(5, 70);
  for (int64_t n = 0; n < 70; ++n) w.at(n, n) = n % 2 == 0 ? 1e6f : -1e-6f;  // a single number
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t k = 0; k < 128; ++k) x.at(t, k) = 3.0f;  // transformed, a single number
    for (int64_t n = 0; n < 70; ++n) dy.at(t, n) = n % 3 == 0 ? -2.0f : 2.0f;
  }
  const Weight weight = make_weight("f32", w);
  const Results results = run(weight, x, dy);
  // A number alone in its block is 2.98 steps everywhere: 3 of them.
  const double grown = 3.0 * 0.335;
  // The other one is 33.8 steps: cut off in four bits.
  const double cut = wide() ? 1.0 : 7.0 * 0.335 / std::sqrt(128.0);
  for (int64_t t = 0; t < 5; ++t) {
    for (int64_t n = 0; n < 70; ++n) {
      const double expected = 3.0 * static_cast<double>(w.at(n, n)) * grown * cut;
      EXPECT_NEAR(results.y.at(t, n), expected, 1e-5 * std::abs(expected)) << t << " " << n;
    }
  }
}

// The transform is there for outliers; on normal numbers four bits lose what theory says.
TEST_P(Int4ProductTest, AnOutlierIsSpreadOverItsBlock) {
  const Weight weight = make_weight("f32", random_matrix(128, 512, 1));
  const auto error = [&](const Matrix& x) {
    const Results results = run(weight, x, Matrix(x.rows, 128));
    const Exact exact = multiply(x, values_of(weight).transposed());
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < exact.value.size(); ++i) {
      const double d = static_cast<double>(results.y.values[i]) - exact.value[i];
      difference += d * d;
      norm += exact.value[i] * exact.value[i];
    }
    return std::sqrt(difference / norm);
  };
  Matrix x = random_matrix(200, 512, 2);
  // 10.7 % of a normal variable's deviation (Max 1960), for one operand or both.
  EXPECT_NEAR(error(x), wide() ? 0.108 : 0.108 * std::sqrt(2.0), 0.01);
  for (int64_t t = 0; t < x.rows; ++t) x.at(t, 77) *= 30.0f;
  const double spread = error(x);
  EXPECT_LT(spread, wide() ? 0.14 : 0.25);
  if (wide()) return;  // eight bits have room for it without, too
  product_ = with_block("1");
  EXPECT_GT(error(x), 2.5 * spread);
}

TEST_P(Int4ProductTest, RandomNumbersFollowTheToken) {
  const Weight weight = make_weight("f32", random_matrix(150, 96, 1));
  const Matrix x = random_matrix(40, 96, 2);
  const Matrix dy = random_matrix(40, 150, 3);
  const Results whole = run(weight, x, dy, *ops_, 100);
  const auto part = [&](const Matrix& m, int64_t begin, int64_t end) {
    Matrix out(end - begin, m.cols);
    std::copy_n(m.values.begin() + begin * m.cols, out.values.size(), out.values.begin());
    return out;
  };
  std::vector<float> parts = run(weight, part(x, 0, 17), part(dy, 0, 17), *ops_, 100).dx.values;
  const std::vector<float> rest =
      run(weight, part(x, 17, 40), part(dy, 17, 40), *ops_, 117).dx.values;
  parts.insert(parts.end(), rest.begin(), rest.end());
  EXPECT_EQ(parts, whole.dx.values);

  EXPECT_NE(run(weight, x, dy, *ops_, 101).dx.values, whole.dx.values);
  EXPECT_NE(run(weight, x, dy, *ops_, 101).dw.values, whole.dw.values);
  ++scalars_.step;
  EXPECT_NE(run(weight, x, dy, *ops_, 100).dw.values, whole.dw.values);
  --scalars_.step;
  EXPECT_EQ(run(weight, x, dy, *ops_, 100).all(), whole.all());
}

TEST_P(Int4ProductTest, ThreadsDoNotChangeBits) {
  const Weight weight = make_weight("bf16", random_matrix(300, 96, 1));
  const Matrix x = random_matrix(150, 96, 12);
  const Matrix dy = random_matrix(150, 300, 13);
  const std::vector<float> first = run(weight, x, dy).all();
  for (const int threads : {2, 3}) {
    const auto ops = std::make_unique<SmallPanelOps>(make_test_ops(threads));
    EXPECT_EQ(run(weight, x, dy, *ops).all(), first) << threads << " threads";
  }
}

// One token, and projected gradients, are the f32 product's.
TEST_P(Int4ProductTest, TheRestIsF32) {
  const Weight weight = make_weight("bf16", random_matrix(33, 64, 1));
  for (const int64_t tokens : {1, 9}) {
    Matrix x = random_matrix(tokens, 64, 2), dy = random_matrix(tokens, 33, 3);
    Matrix p = random_matrix(33, 5, 4), q = random_matrix(64, 5, 5);
    Context run = context();
    const Arena::Frame frame(scratch_);
    std::array<std::vector<float>, 2> results;
    for (size_t i = 0; i < results.size(); ++i) {
      const Product& arithmetic = i == 0 ? *product_ : f32_product();
      Matrix y(tokens, 33), dx(tokens, 64), d(33, 64), left(64, 5), right(33, 5);
      const Operand operand = arithmetic.prepare(run, x.view());
      const Gradient g = arithmetic.backward(run, operand, dy.view(), weight);
      if (tokens == 1) {
        arithmetic.forward(run, operand, weight, y.view(), Accumulate::no);
        g.add_dx(dx.view(), Accumulate::no);
        g.add_dw(d.view());
      }
      g.add_left(p.view(), left.view());
      g.add_right(q.view(), right.view());
      for (const Matrix* m : {&y, &dx, &d, &left, &right}) {
        results[i].insert(results[i].end(), m->values.begin(), m->values.end());
      }
    }
    EXPECT_EQ(results[0], results[1]) << tokens << " tokens";
  }
}

// What is not finite shows in every result of its token, and in no other.
TEST_P(Int4ProductTest, NonFiniteElementsAreNotHidden) {
  const Weight weight = make_weight("f32", random_matrix(70, 128, 1));
  for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
    Matrix x = random_matrix(3, 128, 2);
    Matrix dy = random_matrix(3, 70, 3);
    const Results good = run(weight, x, dy);
    x.at(1, 77) = bad;
    dy.at(1, 5) = bad;
    const Results results = run(weight, x, dy);
    for (int64_t t = 0; t < 3; ++t) {
      for (int64_t n = 0; n < 70; ++n) {
        EXPECT_EQ(std::isfinite(results.y.at(t, n)), t != 1);
        if (t != 1) {
          EXPECT_EQ(results.y.at(t, n), good.y.at(t, n));
        }
      }
      for (int64_t k = 0; k < 128; ++k) {
        EXPECT_EQ(std::isfinite(results.dx.at(t, k)), t != 1);
        if (t != 1) {
          EXPECT_EQ(results.dx.at(t, k), good.dx.at(t, k));
        }
      }
    }
    for (const float value : results.dw.values) EXPECT_FALSE(std::isfinite(value));
  }
}

TEST_P(Int4ProductTest, RefusesABlockThatDoesNotDivideAndLeavesTheHead) {
  const std::vector<WeightSpec> linears = {
      {"model.layers.0.mlp.down_proj.weight", 64, 172, WeightKind::linear, 0, "down_proj"},
      {"model.layers.0.mlp.up_proj.weight", 172, 64, WeightKind::linear, 0, "up_proj"},
      {"model.layers.0.self_attn.q_proj.weight", 64, 80, WeightKind::linear, 0, "q_proj"},
      {"model.layers.1.mlp.down_proj.weight", 64, 172, WeightKind::linear, 1, "down_proj"},
      {"lm_head.weight", 256, 64, WeightKind::linear, -1, "lm_head"}};
  const auto which = [&](const char* block, std::vector<std::string> excluded) {
    return Arithmetic(with_block(block), std::move(excluded), linears);
  };
  expect_error(ErrorKind::usage, "down_proj.weight is 172 wide", [&] { which("16", {}); });
  which("16", {"down_proj"});
  // All of them at once, with those that are left out already.
  const auto hint = [&](const char* block, const std::vector<std::string>& excluded) {
    return hint_of(error_of(ErrorKind::usage, [&] { which(block, excluded); }));
  };
  EXPECT_TRUE(hint("16", {}).ends_with(": product_exclude=down_proj")) << hint("16", {});
  EXPECT_TRUE(hint("64", {}).ends_with(": product_exclude=down_proj,q_proj")) << hint("64", {});
  EXPECT_TRUE(hint("64", {"down_proj"}).ends_with(": product_exclude=down_proj,q_proj"));
  which("64", {"down_proj", "q_proj"});
  EXPECT_TRUE(hint("128", {}).ends_with(" that divides a width, here 4")) << hint("128", {});
  const Arithmetic all = which("auto", {});
  EXPECT_EQ(&all.product_of(linears[0]), &all.product());
  EXPECT_EQ(&all.product_of(linears[1]), &all.product());
  EXPECT_STREQ(all.product_of(linears[4]).name(), "int8");
}

INSTANTIATE_TEST_SUITE_P(Modes, Int4ProductTest, ::testing::ValuesIn(kInt4Modes),
                         [](const auto& test) { return std::string(test.param.product); });

}  // namespace
}  // namespace jackscrew
