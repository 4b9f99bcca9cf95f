// The products int4 and w4a8 as a plain model of what they transform and round, and the fixture of
// their tests.
#pragma once

#include <cmath>
#include <string>
#include <vector>

#include "quant/format.h"
#include "tests/products/rounded.h"
#include "tests/support/hadamard.h"
#include "tests/support/products.h"
#include "tests/support/small_panels.h"
#include "tests/support/test_ops.h"

namespace jackscrew {

inline std::vector<double> turned(const std::vector<double>& values, int64_t block) {
  std::vector<double> out = summed(values, block);
  for (double& value : out) value /= std::sqrt(static_cast<double>(block));
  return out;
}

// Rows as codes of their transform, `inside` 1 where nothing was cut off.
struct Coded {
  Matrix codes, values, inside;
  std::vector<float> steps;
};

// limit 0: four bits.
inline Coded coded(const Matrix& m, int64_t block, int32_t limit) {
  Coded out{Matrix(m.rows, m.cols), Matrix(m.rows, m.cols), Matrix(m.rows, m.cols), {}};
  Matrix wide = m;
  wide.values = summed(m.values, block);
  const float shrink = 1.0f / std::sqrt(static_cast<float>(block));
  const auto top = static_cast<float>(limit == 0 ? 7 : limit);
  const float bottom = limit == 0 ? -8.0f : -top;
  for (int64_t r = 0; r < m.rows; ++r) {
    double squares = 0.0;
    float largest = 0.0f;
    for (int64_t c = 0; c < m.cols; ++c) {
      squares += static_cast<double>(m.at(r, c)) * static_cast<double>(m.at(r, c));
      largest = std::max(largest, std::abs(wide.at(r, c)));
    }
    const float step =
        limit == 0 ? static_cast<float>(0.335 * std::sqrt(squares / static_cast<double>(m.cols)))
                   : largest * shrink / top;
    for (int64_t c = 0; c < m.cols; ++c) {
      const float value = step > 0.0f ? wide.at(r, c) * (shrink / step) : 0.0f;
      out.codes.at(r, c) = std::nearbyint(std::clamp(value, bottom, top));
      out.values.at(r, c) = step * out.codes.at(r, c);
      out.inside.at(r, c) = limit != 0 || (value >= bottom && value <= top) ? 1.0f : 0.0f;
    }
    out.steps.push_back(step);
  }
  return out;
}

struct Mode {
  const char* product;
  bool wide;
};
inline constexpr Mode kInt4Modes[] = {{"int4", false}, {"w4a8", true}};

class Int4ProductTest : public ::testing::TestWithParam<Mode> {
 protected:
  bool wide() const { return GetParam().wide; }
  int32_t x_limit() const { return wide() ? ops_->int8_limit() : 0; }
  int32_t gradient_limit() const { return wide() ? ops_->int8_limit() : 7; }
  std::unique_ptr<const Product> with_block(const char* block) const {
    const std::string option = std::string(GetParam().product) + "_block";
    return make_product(GetParam().product, *ops_, {{option.c_str(), block}});
  }
  Context context(Ops& ops) { return {ops, scratch_, &scalars_, true}; }
  Context context() { return context(*ops_); }

  Weight make_weight(const char* format, Matrix values) {
    Weight weight(memory_, {"the.weight", values.rows, values.cols}, find_format(format));
    weight.publish(*ops_, values.view(), {}, scratch_);
    return weight;
  }
  Matrix values_of(const Weight& weight) {
    Matrix out(weight.rows(), weight.cols());
    weight.decode(*ops_, 0, weight.rows(), out.view());
    return out;
  }

  // dy times the steps of the weight's rows, as it is rounded for dx.
  Rounded rounded_gradient(const Matrix& dy, const Coded& w, int64_t first_token = 0) const {
    Matrix scaled = dy;
    for (int64_t t = 0; t < dy.rows; ++t) {
      for (int64_t n = 0; n < dy.cols; ++n) scaled.at(t, n) *= w.steps[static_cast<size_t>(n)];
    }
    return rounded(scaled, kInt8Group, gradient_limit(), [&](int64_t t, int64_t n, float value) {
      return stochastic(value,
                        gradient_uniform(scalars_, "the.weight", first_token + t, n, dy.cols));
    });
  }

  // (mask ∘ gradient) turned back, with what bounds its rounding.
  static Exact back(Exact gradient, const Matrix& inside, int64_t block, const Matrix* start) {
    for (size_t i = 0; i < gradient.value.size(); ++i) {
      gradient.value[i] *= static_cast<double>(inside.values[i]);
      gradient.magnitude[i] *= static_cast<double>(inside.values[i]);
    }
    Exact out{turned(gradient.value, block), {}};
    for (size_t i = 0; i < out.value.size(); ++i) {
      const size_t first = i - i % static_cast<size_t>(inside.cols) % static_cast<size_t>(block);
      double magnitude = 0.0;
      for (int64_t j = 0; j < block; ++j)
        magnitude += gradient.magnitude[first + static_cast<size_t>(j)];
      out.magnitude.push_back(magnitude / std::sqrt(static_cast<double>(block)));
      if (start == nullptr) continue;
      out.value[i] += static_cast<double>(start->values[i]);
      out.magnitude[i] += std::abs(static_cast<double>(start->values[i]));
    }
    return out;
  }

  struct Results {
    Matrix y, dx, dw;
    std::vector<float> all() const {
      std::vector<float> out = y.values;
      out.insert(out.end(), dx.values.begin(), dx.values.end());
      out.insert(out.end(), dw.values.begin(), dw.values.end());
      return out;
    }
  };
  Results run(const Weight& weight, Matrix x, Matrix dy, Ops& ops, int64_t tokens_before = 0) {
    Context run = context(ops);
    run.rows.first = tokens_before;
    const Arena::Frame frame(scratch_);
    Results out{Matrix(x.rows, weight.rows()), Matrix(x.rows, x.cols),
                Matrix(weight.rows(), weight.cols())};
    const Operand operand = product_->prepare(run, x.view());
    product_->forward(run, operand, weight, out.y.view(), Accumulate::no);
    const Gradient g = product_->backward(run, operand, dy.view(), weight);
    g.add_dx(out.dx.view(), Accumulate::no);
    g.add_dw(out.dw.view());
    return out;
  }
  Results run(const Weight& weight, const Matrix& x, const Matrix& dy) {
    return run(weight, x, dy, *ops_);
  }

  void check(const Weight& weight, int64_t tokens, int64_t block, const std::string& name) {
    const Matrix values = values_of(weight);
    const Coded w = coded(values, block, 0);
    Matrix x = random_matrix(tokens, weight.cols(), 3);
    // Columns far larger than the rest, a token of zeros.
    for (int64_t t = 0; t < tokens; ++t) {
      x.at(t, weight.cols() / 2) *= 40.0f;
      for (int64_t k = 0; k < weight.cols() && t == 1; ++k) x.at(t, k) = 0.0f;
    }
    Matrix dy = random_matrix(tokens, weight.rows(), 4);
    const Coded coded_x = coded(x, block, x_limit());
    const Rounded dy_rows = rounded_gradient(dy, w);
    const Rounded dy_columns =
        rounded_columns(dy, coded_x.steps, gradient_limit(), scalars_, "the.weight");
    Context run = context();
    const Arena::Frame frame(scratch_);
    const Operand operand = product_->prepare(run, x.view());
    const Gradient g = product_->backward(run, operand, dy.view(), weight);
    for (const Accumulate accumulate : {Accumulate::no, Accumulate::yes}) {
      const bool adds = accumulate == Accumulate::yes;
      const Matrix y_start = random_matrix(tokens, weight.rows(), 5);
      Matrix y = y_start;
      product_->forward(run, operand, weight, y.view(), accumulate);
      EXPECT_LE(
          error_of(y, multiply(coded_x.values, w.values.transposed(), adds ? &y_start : nullptr)),
          kF32)
          << name << " y";
      const Matrix dx_start = random_matrix(tokens, weight.cols(), 6);
      Matrix dx = dx_start;
      g.add_dx(dx.view(), accumulate);
      EXPECT_LE(error_of(dx, back(multiply(dy_rows.values, w.codes), coded_x.inside, block,
                                  adds ? &dx_start : nullptr)),
                kF32)
          << name << " dx";
    }
    const Matrix start = random_matrix(weight.rows(), weight.cols(), 7);
    Matrix d = start;
    g.add_dw(d.view());
    EXPECT_LE(
        error_of(d, back(multiply(dy_columns.values, coded_x.codes), w.inside, block, &start)),
        kF32)
        << name << " dW";
  }

  std::unique_ptr<Ops> ops_ = std::make_unique<SmallPanelOps>(make_test_ops(1));
  std::unique_ptr<const Product> product_ = make_product(GetParam().product, *ops_);
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{128} << 20};
  StepScalars scalars_ = [] {
    StepScalars scalars{};
    scalars.seed = 11;
    scalars.step = 3;
    return scalars;
  }();
};

}  // namespace jackscrew
