// The gradients of the products int4 and w4a8 as those of what they compute: finite differences,
// and means over many roundings.
#include "tests/products/int4_rig.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

using Int4GradientTest = Int4ProductTest;

// Gradients are those of the network in which rounding is the identity, but cutting off is not: its
// finite differences, with dy such that rounding it loses nothing.
TEST_P(Int4GradientTest, FiniteDifferencesOfTheStraightThroughNetwork) {
  constexpr int64_t kTokens = 66, kOut = 65, kIn = 32, kBlock = 32;
  const Matrix x = random_matrix(kTokens, kIn, 1);
  const Matrix w = random_matrix(kOut, kIn, 2);
  const Weight weight = make_weight("f32", w);
  const Coded coded_x = coded(x, kBlock, x_limit());
  const Coded coded_w = coded(w, kBlock, 0);
  // Rows with steps as they are, numbers as they are rounded and as they would be without.
  const auto shift = [&](const Coded& c, const Matrix& m, int32_t limit, int64_t row,
                         int64_t column, double by) {
    std::vector<double> values(static_cast<size_t>(m.cols));
    for (int64_t k = 0; k < m.cols; ++k) values[static_cast<size_t>(k)] = m.at(row, k);
    const double step = c.steps[static_cast<size_t>(row)];
    const double top = limit == 0 ? 7.0 : limit;
    const double bottom = limit == 0 ? -8.0 : -1e9;  // nothing of eight bits is cut off
    const std::vector<double> before = turned(values, kBlock);
    values[static_cast<size_t>(column)] += by;
    const std::vector<double> after = turned(values, kBlock);
    std::vector<double> out;
    for (size_t k = 0; k < values.size(); ++k) {
      const auto cut = [&](double v) {
        return step * std::clamp(v / step, bottom, limit == 0 ? top : 1e9);
      };
      out.push_back(static_cast<double>(c.values.at(row, static_cast<int64_t>(k))) + cut(after[k]) -
                    cut(before[k]));
    }
    return out;
  };
  constexpr double kBy = 1e-5;
  const auto worst_of = [&](bool for_x) {
    // Codes of dy: whole numbers, one of each group as large as they get.
    Matrix codes(kTokens, kOut), dy(kTokens, kOut);
    std::mt19937 random(3);
    const auto limit = static_cast<int64_t>(gradient_limit());
    for (int64_t t = 0; t < kTokens; ++t) {
      for (int64_t n = 0; n < kOut; ++n) {
        const bool first = for_x ? n % kInt8Group == 0 : t % kInt8Group == 0;
        codes.at(t, n) = static_cast<float>(
            first ? limit
                  : static_cast<int64_t>(random() % static_cast<uint32_t>(2 * limit + 1)) - limit);
        dy.at(t, n) = codes.at(t, n) / (for_x ? coded_w.steps[static_cast<size_t>(n)]
                                              : coded_x.steps[static_cast<size_t>(t)]);
      }
    }
    const Results results = run(weight, x, dy);
    const Matrix& gradient = for_x ? results.dx : results.dw;
    double worst = 0.0, largest = 0.0;
    for (int64_t row = 0; row < gradient.rows; ++row) {
      for (int64_t k = 0; k < kIn; ++k) {
        double difference = 0.0;
        for (const double by : {kBy, -kBy}) {
          const std::vector<double> moved =
              for_x ? shift(coded_x, x, x_limit(), row, k, by) : shift(coded_w, w, 0, row, k, by);
          double loss = 0.0;
          for (int64_t other = 0; other < (for_x ? kOut : kTokens); ++other) {
            const Matrix& fixed = for_x ? coded_w.values : coded_x.values;
            double y = 0.0;
            for (int64_t j = 0; j < kIn; ++j) {
              y += moved[static_cast<size_t>(j)] * static_cast<double>(fixed.at(other, j));
            }
            loss += y * static_cast<double>(for_x ? dy.at(row, other) : dy.at(other, row));
          }
          difference += loss / (2.0 * by);
        }
        worst = worse(worst, std::abs(static_cast<double>(gradient.at(row, k)) - difference));
        largest = std::max(largest, std::abs(difference));
      }
    }
    return worst / largest;
  };
  EXPECT_LT(worst_of(true), 1e-5) << "dx";
  EXPECT_LT(worst_of(false), 1e-5) << "dW";
}

// Over many steps the mean of dx and of dW is that of the unrounded dy. Rounding to nearest would
// be off by several times the bound.
TEST_P(Int4GradientTest, GradientsAreUnbiased) {
  constexpr int kSteps = 10000;
  constexpr int64_t kBlock = 8;
  const Matrix w = random_matrix(40, 24, 1);
  const Weight weight = make_weight("f32", w);
  const Matrix x = random_matrix(6, 24, 2);
  const Matrix dy = random_matrix(6, 40, 3);
  const Coded coded_x = coded(x, kBlock, x_limit());
  const Coded coded_w = coded(w, kBlock, 0);
  const Exact dx = back(multiply(dy, coded_w.values), coded_x.inside, kBlock, nullptr);
  const Exact dw = back(multiply(dy.transposed(), coded_x.values), coded_w.inside, kBlock, nullptr);
  std::vector<double> exact = dx.value;
  exact.insert(exact.end(), dw.value.begin(), dw.value.end());
  std::vector<double> sum(exact.size()), squares(exact.size());
  for (int step = 0; step < kSteps; ++step) {
    scalars_.step = static_cast<uint32_t>(step);
    const Results results = run(weight, x, dy);
    for (size_t i = 0; i < sum.size(); ++i) {
      const size_t of_dw = i - std::min(i, results.dx.values.size());
      const float value =
          i < results.dx.values.size() ? results.dx.values[i] : results.dw.values[of_dw];
      const double error = static_cast<double>(value) - exact[i];
      sum[i] += error;
      squares[i] += error * error;
    }
  }
  const auto mean = [&](size_t begin, size_t end) {
    double chi_squared = 0.0;
    for (size_t i = begin; i < end; ++i) {
      EXPECT_GT(squares[i], 0.0);
      chi_squared += sum[i] * sum[i] / squares[i];  // of a standard normal variable
    }
    return chi_squared / static_cast<double>(end - begin);
  };
  // On average 1. Elements of a row share their rounding; were they all the same, the average of
  // six rows would still spread by sqrt(2 / 6) only, that of forty by a fifth. A constant error
  // gives kSteps.
  EXPECT_LT(mean(0, dx.value.size()), 2.5);
  EXPECT_LT(mean(dx.value.size(), exact.size()), 1.9);
}

INSTANTIATE_TEST_SUITE_P(Modes, Int4GradientTest, ::testing::ValuesIn(kInt4Modes),
                         [](const auto& test) { return std::string(test.param.product); });

}  // namespace
}  // namespace jackscrew
