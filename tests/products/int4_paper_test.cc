// The mode `paper` of the product int4 against its formulas in double, with the same random
// numbers.
#include "tests/products/int4_paper_rig.h"

#include "products/arithmetic.h"
#include "products/int4_split.rows.h"
#include "tests/support/errors.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

// Sums of f32 over numbers that are whole but for what sampling and 1 / p do to them.
constexpr double kPaper = 1e-5;

constexpr PaperGradient kPaperGradients[] = {{"6", "both"}, {"7", "both"}, {"7", "dw"},
                                             {"6", "dx"},   {"7", "off"},  {"off", "off"}};

// The largest difference in units of the largest value.
double apart(const Matrix& actual, const std::vector<double>& expected) {
  double worst = 0.0, largest = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = worse(worst, std::abs(static_cast<double>(actual.values[i]) - expected[i]));
    largest = std::max(largest, std::abs(expected[i]));
  }
  return worst / largest;
}

// a [rows, depth] times b [depth, cols].
std::vector<double> times(const std::vector<double>& a, const Matrix& b, int64_t rows,
                          double scale) {
  std::vector<double> out(static_cast<size_t>(rows * b.cols));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t k = 0; k < b.rows; ++k) {
      const double left = scale * a[static_cast<size_t>(r * b.rows + k)];
      for (int64_t c = 0; c < b.cols; ++c) {
        out[static_cast<size_t>(r * b.cols + c)] += left * static_cast<double>(b.at(k, c));
      }
    }
  }
  return out;
}

std::vector<double> flipped(const std::vector<double>& m, int64_t rows, int64_t cols) {
  std::vector<double> out(m.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      out[static_cast<size_t>(c * rows + r)] = m[static_cast<size_t>(r * cols + c)];
    }
  }
  return out;
}

std::vector<double> masked_back(std::vector<double> gradient, const PaperCodes& of, int64_t block) {
  for (size_t i = 0; i < gradient.size(); ++i) {
    gradient[i] *= static_cast<double>(of.inside.values[i]);
  }
  return turned(gradient, block);
}

double step_gradient(const std::vector<double>& gradient, const PaperCodes& of, float learned) {
  double sum = 0.0;
  for (size_t i = 0; i < gradient.size(); ++i) {
    sum += gradient[i] * static_cast<double>(of.slopes.values[i]);
  }
  const double sign = learned < 0.0f ? -1.0 : 1.0;
  return sign * sum / std::sqrt(7.0 * static_cast<double>(gradient.size()));
}

TEST_F(Int4PaperTest, IsThePublishedMethodInDouble) {
  constexpr int64_t kTokens = 21, kOut = 70, kIn = 96;
  for (const PaperGradient& mode : kPaperGradients) {
    for (const char* format : {"f32", "nf4"}) {
      for (const char* block : {"1", "auto"}) {
        const int64_t width = std::string(block) == "auto" ? 32 : 1;
        const auto product = paper({{"int4_block", block},
                                    {"int4_bit_split", mode.split},
                                    {"int4_sampling", mode.sampling}});
        const Weight weight = make_weight(format, random_matrix(kOut, kIn, 1));
        const Matrix w = values_of(weight);
        Matrix x = random_matrix(kTokens, kIn, 2);
        for (int64_t t = 0; t < kTokens; ++t) x.at(t, 5) *= 20.0f;
        const Matrix dy = random_matrix(kTokens, kOut, 3);
        const auto parameters = parameters_of(*product, weight);
        for (const auto& [of_w, of_x] : {std::pair{0.0f, 0.0f}, {0.3f, -0.25f}}) {
          const std::string what =
              fmt::format("split {} sampling {} {} block {} steps {} {}", mode.split, mode.sampling,
                          format, block, of_w, of_x);
          parameters->value(0) = of_w;
          parameters->value(1) = of_x;
          const Results got = run(*product, weight, *parameters, x, dy, *ops_, true);
          const PaperCodes cw = paper_codes(w, width, of_w), cx = paper_codes(x, width, of_x);
          const std::vector<double> codes(cx.codes.values.begin(), cx.codes.values.end());
          EXPECT_LE(apart(got.y, times(codes, cw.codes.transposed(), kTokens, cx.step * cw.step)),
                    kPaper)
              << what;
          const std::vector<double> ones(static_cast<size_t>(kTokens), 1.0);
          std::vector<double> norms;
          for (int64_t t = 0; t < kTokens; ++t) norms.push_back(PaperSplit::norm(cx.codes, t));
          const std::vector<double> of_input =
              times(joined(dy, mode, "dx", ones), cw.codes, kTokens, cw.step);
          const std::vector<double> of_weight =
              times(flipped(joined(dy, mode, "dw", norms), kTokens, kOut), cx.codes, kOut, cx.step);
          EXPECT_LE(apart(got.dx, masked_back(of_input, cx, width)), kPaper) << what;
          const std::vector<double> dw = masked_back(of_weight, cw, width);
          EXPECT_LE(apart(got.dw, dw), kPaper) << what;
          EXPECT_LE(
              apart(got.left, times(flipped(dw, kOut, kIn), random_matrix(kOut, 3, 8), kIn, 1.0)),
              kPaper)
              << what;
          EXPECT_LE(apart(got.right, times(dw, random_matrix(kIn, 3, 9), kOut, 1.0)), kPaper)
              << what;
          if (of_w == 0.0f) {  // nothing is learned yet
            EXPECT_EQ(got.steps.values, std::vector<float>(2)) << what;
            continue;
          }
          const double wanted_w = step_gradient(of_weight, cw, of_w);
          const double wanted_x = step_gradient(of_input, cx, of_x);
          EXPECT_NEAR(got.steps.at(0, 0), wanted_w, 1e-4 * std::abs(wanted_w)) << what;
          EXPECT_NEAR(got.steps.at(0, 1), wanted_x, 1e-4 * std::abs(wanted_x)) << what;
        }
      }
    }
  }
  EXPECT_EQ(scratch_.used(), 0);
}

// In the first steps of a run, and where nobody trains them, steps are those of the mean magnitude,
// whatever is in the parameters.
TEST_F(Int4PaperTest, BeginsCold) {
  const auto product = paper({{"int4_cold_steps", "5"}, {"int4_sampling", "off"}});
  const auto dynamic = paper({{"int4_steps", "dynamic"}, {"int4_sampling", "off"}});
  const Weight weight = make_weight("f32", random_matrix(33, 64, 1));
  const Matrix x = random_matrix(7, 64, 2), dy = random_matrix(7, 33, 3);
  const auto parameters = parameters_of(*product, weight);
  const Parameters none;
  EXPECT_EQ(parameters->value(0), 0.0f);
  EXPECT_EQ(parameters->value(1), 0.0f);
  parameters->value(0) = parameters->value(1) = 0.5f;
  for (const uint32_t step : {0u, 4u, 5u}) {
    scalars_.step = step;
    const Results got = run(*product, weight, *parameters, x, dy);
    const Results wanted = run(*dynamic, weight, none, x, dy);
    EXPECT_EQ(got.y.values == wanted.y.values, step < 5) << step;
    EXPECT_EQ(got.dx.values == wanted.dx.values, step < 5) << step;
    EXPECT_EQ(got.dw.values == wanted.dw.values, step < 5) << step;
    EXPECT_EQ(got.steps.values == std::vector<float>(2), step < 5) << step;
    if (step == 5) {
      EXPECT_EQ(got.starts.values, std::vector<float>(4));
      continue;
    }
    EXPECT_NEAR(got.starts.at(0, 0), 7.0 * dynamic_step(values_of(weight), 32), 1e-6);
    EXPECT_NEAR(got.starts.at(0, 1), 7.0 * dynamic_step(x, 32), 1e-6);
    EXPECT_EQ(got.starts.at(1, 0), 7.0f);
    EXPECT_EQ(got.starts.at(1, 1), 7.0f);
  }
}

// What the transform is for.
TEST_F(Int4PaperTest, AnOutlierIsSpreadOverItsBlock) {
  const Weight weight = make_weight("f32", random_matrix(128, 512, 1));
  const Matrix w = values_of(weight);
  Matrix x = random_matrix(200, 512, 2);
  for (int64_t t = 0; t < x.rows; ++t) {
    for (const int64_t column : {77, 300, 450}) x.at(t, column) *= 30.0f;
  }
  const Exact exact = multiply(x, w.transposed());
  const auto error = [&](const char* block) {
    const auto product = paper({{"int4_block", block}});
    const auto parameters = parameters_of(*product, weight);
    const Results results = run(*product, weight, *parameters, x, Matrix(x.rows, 128));
    double difference = 0.0, norm = 0.0;
    for (size_t i = 0; i < exact.value.size(); ++i) {
      const double d = static_cast<double>(results.y.values[i]) - exact.value[i];
      difference += d * d;
      norm += exact.value[i] * exact.value[i];
    }
    return std::sqrt(difference / norm);
  };
  const double without = error("1"), with = error("32");
  EXPECT_GT(without, 0.5);
  EXPECT_LT(with, 0.3);
  EXPECT_GT(without, 2.5 * with);
}

TEST_F(Int4PaperTest, ProbabilitiesAreThoseOfWaterFilling) {
  std::mt19937 random(5);
  std::lognormal_distribution<double> heavy(0.0, 2.0);
  for (const int64_t count : {1, 2, 7, 64, 300}) {
    for (const bool has_other : {false, true}) {
      std::vector<double> squares, other, scores;
      for (int64_t i = 0; i < count; ++i) other.push_back(has_other ? heavy(random) : 1.0);
      for (int64_t i = 0; i < 2 * count; ++i) {
        squares.push_back(i % 5 == 3 ? 0.0 : heavy(random));
        scores.push_back(std::sqrt(squares.back() * other[static_cast<size_t>(i % count)]));
      }
      std::vector<float> got(squares.size());
      ops_->launch(LeverageProbabilities{squares.data(), has_other ? other.data() : nullptr,
                                         got.data(), count},
                   1);
      const std::vector<double> wanted = leverage(scores);
      double sum = 0.0;
      for (size_t i = 0; i < wanted.size(); ++i) {
        EXPECT_NEAR(got[i], wanted[i], 1e-5) << count << " " << i;
        sum += static_cast<double>(got[i]);
      }
      const auto nonzero =
          std::count_if(scores.begin(), scores.end(), [](double c) { return c > 0; });
      EXPECT_NEAR(sum, static_cast<double>(std::min<int64_t>(count, nonzero)), 1e-3);
    }
  }
}

// With 7 both halves have room for what they are to hold, and gradients have no bias; 6 cuts off.
// That sampling adds the variance of the formula shows beside the same halves without it.
TEST_F(Int4PaperTest, EstimatesAreUnbiasedWithSevenAndHaveTheVarianceOfTheFormula) {
  constexpr int kDraws = 10000;
  constexpr int64_t kTokens = 6, kOut = 24, kIn = 16;
  const Weight weight = make_weight("f32", random_matrix(kOut, kIn, 1));
  const Matrix x = random_matrix(kTokens, kIn, 2), dy = random_matrix(kTokens, kOut, 3);
  const auto exact = paper({{"int4_bit_split", "off"}, {"int4_sampling", "off"}});
  const auto seven = paper({{"int4_bit_split", "7"}});
  const auto all_rows = paper({{"int4_bit_split", "7"}, {"int4_sampling", "off"}});
  const auto six = paper({{"int4_sampling", "off"}});
  const auto parameters = parameters_of(*exact, weight);
  // Wide steps: nothing is cut off, so that what the transform does to dW keeps its norm.
  parameters->value(0) = parameters->value(1) = 2.0f;
  const auto gradients = [&](const Product& product) {
    const Results results = run(product, weight, *parameters, x, dy);
    std::vector<double> out(results.dx.values.begin(), results.dx.values.end());
    out.insert(out.end(), results.dw.values.begin(), results.dw.values.end());
    return out;
  };
  const std::vector<double> wanted = gradients(*exact);
  const PaperCodes cx = paper_codes(x, 16, 2.0f);
  std::vector<double> norms;
  for (int64_t t = 0; t < kTokens; ++t) norms.push_back(PaperSplit::norm(cx.codes, t));
  struct Moments {
    std::vector<double> sum, squares;
    void add(size_t i, double error) {
      if (sum.size() <= i) {
        sum.resize(i + 1);
        squares.resize(i + 1);
      }
      sum[i] += error;
      squares[i] += error * error;
    }
    double chi_squared() const {
      double total = 0.0;
      for (size_t i = 0; i < sum.size(); ++i) total += sum[i] * sum[i] / squares[i];
      return total / static_cast<double>(sum.size());
    }
  } of_seven, of_six;
  double sampled = 0.0, formula = 0.0;
  for (int draw = 0; draw < kDraws; ++draw) {
    scalars_.step = static_cast<uint32_t>(1000 + draw);
    const std::vector<double> with = gradients(*seven), without = gradients(*all_rows);
    for (size_t i = 0; i < wanted.size(); ++i) of_seven.add(i, with[i] - wanted[i]);
    if (draw < 1000) {
      const std::vector<double> cut = gradients(*six);
      for (size_t i = 0; i < wanted.size(); ++i) of_six.add(i, cut[i] - wanted[i]);
    }
    for (size_t i = static_cast<size_t>(kTokens * kIn); i < with.size(); ++i) {
      sampled += (with[i] - without[i]) * (with[i] - without[i]);
    }
    const PaperSplit split = paper_split(dy, 7, scalars_);
    const std::vector<double> p = split.probabilities(norms);
    for (int64_t i = 0; i < 2 * kTokens; ++i) {
      const int64_t t = i % kTokens;
      const double row =
          i < kTokens ? 14.0 * PaperSplit::norm(split.high, t) : PaperSplit::norm(split.low, t);
      const double size = split.unit * row * cx.step * norms[static_cast<size_t>(t)];
      const double each = p[static_cast<size_t>(i)];
      if (each > 0.0) formula += (1.0 - each) / each * size * size;
    }
  }
  // 1 on average; rows share what is random about them.
  EXPECT_LT(of_seven.chi_squared(), 2.5);
  EXPECT_GT(of_six.chi_squared(), 20.0);
  EXPECT_NEAR(sampled / formula, 1.0, 0.03);
}

// Whole numbers, be they as large as they get: without sampling no bit depends on the instruction
// set.
TEST_F(Int4PaperTest, SumsAreExactOnEveryLevel) {
  constexpr int64_t kTokens = 40, kOut = 96, kIn = 512;
  const auto product = paper({{"int4_bit_split", "7"}, {"int4_sampling", "off"}});
  Matrix w(kOut, kIn), x(kTokens, kIn), dy(kTokens, kOut);
  // A single number in a block is spread over all of it.
  for (int64_t n = 0; n < kOut; ++n) {
    for (int64_t k = 0; k < kIn; k += 32) w.at(n, k) = n % 2 == 0 ? 1e3f : -1e3f;
  }
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t k = 0; k < kIn; k += 32) x.at(t, k) = -1e3f;
    for (int64_t n = 0; n < kOut; ++n) dy.at(t, n) = n % 3 == 0 ? 2.0f : -2.0f;
  }
  const Weight weight = make_weight("f32", w);
  const auto parameters = parameters_of(*product, weight);
  parameters->value(0) = parameters->value(1) = 0.25f;
  const Results got = run(*product, weight, *parameters, x, dy);
  for (int64_t n = 0; n < kOut; ++n) {
    EXPECT_EQ(got.y.at(3, n), kIn * (n % 2 == 0 ? 7.0f : -8.0f) * -8.0f * 0.0625f);
  }
  const Matrix mixed = random_matrix(kTokens, kIn, 2), of_mixed = random_matrix(kTokens, kOut, 3);
  const Weight other = make_weight("f32", random_matrix(kOut, kIn, 4));
  const auto lowest = make_cpu_ops(1, IsaLevel::v3);
  using Case = std::tuple<const Weight*, const Matrix*, const Matrix*>;
  for (const auto& [of, in, gradient] : {Case{&weight, &x, &dy}, {&other, &mixed, &of_mixed}}) {
    const Results here = run(*product, *of, *parameters, *in, *gradient);
    const Results below = run(*product, *of, *parameters, *in, *gradient, *lowest);
    EXPECT_EQ(here.y.values, below.y.values);
    EXPECT_EQ(here.dx.values, below.dx.values);
    EXPECT_EQ(here.dw.values, below.dw.values);
  }
}

TEST_F(Int4PaperTest, ThreadsDoNotChangeBits) {
  const auto product = paper({});
  const Weight weight = make_weight("bf16", random_matrix(300, 96, 1));
  const Matrix x = random_matrix(150, 96, 12), dy = random_matrix(150, 300, 13);
  const auto parameters = parameters_of(*product, weight);
  for (const float step : {0.0f, 0.3f}) {
    parameters->value(0) = parameters->value(1) = step;
    const std::vector<float> first = run(*product, weight, *parameters, x, dy, *ops_, true).all();
    for (const int threads : {2, 3}) {
      const auto ops = std::make_unique<SmallPanelOps>(make_test_ops(threads));
      EXPECT_EQ(run(*product, weight, *parameters, x, dy, *ops, true).all(), first) << threads;
    }
    ++scalars_.step;
    EXPECT_NE(run(*product, weight, *parameters, x, dy, *ops_, true).all(), first);
    --scalars_.step;
  }
}

TEST_F(Int4PaperTest, NonFiniteElementsAreNotHidden) {
  const auto product = paper({});
  const Weight weight = make_weight("f32", random_matrix(70, 128, 1));
  const auto parameters = parameters_of(*product, weight);
  for (const float step : {0.0f, 0.3f}) {
    parameters->value(0) = parameters->value(1) = step;
    for (const float bad : {HUGE_VALF, -HUGE_VALF, std::nanf("")}) {
      Matrix x = random_matrix(3, 128, 2), dy = random_matrix(3, 70, 3);
      x.at(1, 77) = bad;
      for (int64_t n = 0; n < 70; ++n) {
        EXPECT_FALSE(std::isfinite(run(*product, weight, *parameters, x, dy).y.at(1, n)));
      }
      x.at(1, 77) = 1.0f;
      dy.at(1, 5) = bad;
      const Results results = run(*product, weight, *parameters, x, dy);
      for (const Matrix* gradient : {&results.dx, &results.dw}) {
        for (const float value : gradient->values) EXPECT_FALSE(std::isfinite(value));
      }
    }
  }
}

// The block of the smallest product of both rounding errors, in the first step of a run.
TEST_F(Int4PaperTest, SearchesTheBlock) {
  const auto product = paper({{"int4_block", "search"}, {"int4_sampling", "off"}});
  const Weight weight = make_weight("f32", random_matrix(40, 192, 1));
  const Matrix w = values_of(weight);
  Matrix x = random_matrix(9, 192, 2);
  for (int64_t t = 0; t < x.rows; ++t) x.at(t, 7) *= 25.0f;
  const Matrix dy = random_matrix(9, 40, 3);
  const auto parameters = parameters_of(*product, weight);
  ASSERT_EQ(parameters->all.size(), 3u);
  ASSERT_EQ(parameters->all[2]->size(), 7);  // 1 to 64
  const auto errors_at = [&](uint32_t step) {
    scalars_.step = step;
    Context run = context(*ops_);
    const Arena::Frame frame(scratch_);
    Matrix in = x, out = dy, d(2, 7);
    const LinearUse use(weight, parameters->all);
    const Gradient g = product->backward(run, product->prepare(run, in.view()), out.view(), use);
    product->add_parameter_start(g, 2, d.view());
    return d;
  };
  EXPECT_EQ(errors_at(1).values, Matrix(2, 7).values);
  const Matrix errors = errors_at(0);
  const auto lost = [](const Matrix& m, int64_t block) {
    const PaperCodes codes = paper_codes(m, block, 0.0f);
    const std::vector<double> exact =
        turned(std::vector<double>(m.values.begin(), m.values.end()), block);
    double squares = 0.0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double difference = codes.step * static_cast<double>(codes.codes.values[i]) - exact[i];
      squares += difference * difference;
    }
    return std::sqrt(squares / static_cast<double>(exact.size()));
  };
  int64_t best = 0;
  for (int64_t c = 0; c < 7; ++c) {
    const double wanted = lost(w, int64_t{1} << c) * lost(x, int64_t{1} << c);
    EXPECT_NEAR(errors.at(0, c), 9.0 * wanted, 1e-4 * wanted);
    EXPECT_EQ(errors.at(1, c), 9.0f);
    if (errors.at(0, c) < errors.at(0, best)) best = c;
    parameters->value(2, c) = errors.at(0, c) / errors.at(1, c);
  }
  EXPECT_GE(best, 4);  // spread far
  scalars_.step = 100;
  // As the block that it found, as one that it is told, and as the usual one before it knows.
  parameters->value(0) = parameters->value(1) = 0.3f;
  for (const auto& [block, c] : {std::pair{"16", 4}, {"1", 0}, {"64", 6}, {"32", -1}}) {
    for (int64_t i = 0; i < 7; ++i) parameters->value(2, i) = c < 0 ? 0.0f : i == c ? 0.1f : 0.2f;
    const auto fixed = paper({{"int4_block", block}, {"int4_sampling", "off"}});
    const auto its_parameters = parameters_of(*fixed, weight);
    its_parameters->value(0) = its_parameters->value(1) = 0.3f;
    EXPECT_EQ(run(*product, weight, *parameters, x, dy, *ops_, true).all(),
              run(*fixed, weight, *its_parameters, x, dy, *ops_, true).all())
        << block;
  }
}

TEST_F(Int4PaperTest, RefusesWhatItCannotDo) {
  const auto refused = [&](const char* part, Options options) {
    expect_error(ErrorKind::usage, part, [&] { paper(options); });
  };
  refused("int4_sampling=both keeps rows", {{"int4_bit_split", "off"}});
  refused("int4_cold_steps is 1", {{"int4_block", "search"}, {"int4_cold_steps", "1"}});
  for (const auto& option : {std::pair{"int4_steps", "dynamic"},
                             {"int4_step_learning_rate", "1e-3"},
                             {"int4_cold_steps", "3"},
                             {"int4_bit_split", "7"},
                             {"int4_sampling", "off"}}) {
    expect_error(ErrorKind::usage, "with int4_mode=paper alone",
                 [&] { make_product("int4", *ops_, {option}); });
    paper({option});
  }
  // Their defaults, as others write them.
  EXPECT_NO_THROW(make_product(
      "int4", *ops_, {{"int4_step_learning_rate", "0.0002"}, {"int4_cold_steps", "020"}}));
  expect_error(ErrorKind::usage, "int4_block=search is for", [&] {
    make_product("int4", *ops_, {{"int4_block", "search"}});
  });
  const std::vector<WeightSpec> linears = {
      {"model.layers.0.mlp.down_proj.weight", 64, 172, WeightKind::linear, 0, "down_proj"},
      {"lm_head.weight", 256, 64, WeightKind::linear, -1, "lm_head"}};
  expect_error(ErrorKind::usage, "down_proj.weight is 172 wide", [&] {
    Arithmetic(paper({{"int4_block", "16"}}), {}, linears);
  });
  const Arithmetic all(paper({}), {}, linears);
  EXPECT_EQ(&all.product_of(linears[0]), &all.product());
  EXPECT_STREQ(all.product_of(linears[1]).name(), "f32");
}

}  // namespace
}  // namespace jackscrew
