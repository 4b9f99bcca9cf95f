// The mode `paper` of the product int4 as a plain model in double of what it transforms, rounds,
// splits and samples, and the fixture of its tests.
#pragma once

#include <numeric>
#include <utility>

#include "tests/products/int4_rig.h"

namespace jackscrew {

// A tensor in four bits with one step for all of it.
struct PaperCodes {
  Matrix codes, inside, slopes;  // slopes: what a number changes by when the step grows
  double step;
};

inline double dynamic_step(const Matrix& m, int64_t block) {
  const std::vector<float> wide = summed(m.values, block);
  double sum = 0.0;
  for (const float value : wide) sum += std::abs(static_cast<double>(value));
  const double mean =
      sum / std::sqrt(static_cast<double>(block)) / static_cast<double>(m.values.size());
  return 2.0 * mean / std::sqrt(7.0) + 1e-10;
}

// learned 0: the dynamic step.
inline PaperCodes paper_codes(const Matrix& m, int64_t block, float learned) {
  const float step =
      learned != 0.0f ? std::abs(learned) : static_cast<float>(dynamic_step(m, block));
  PaperCodes out{Matrix(m.rows, m.cols), Matrix(m.rows, m.cols), Matrix(m.rows, m.cols),
                 static_cast<double>(step)};
  const std::vector<float> wide = summed(m.values, block);
  const float factor = 1.0f / std::sqrt(static_cast<float>(block)) / step;
  for (size_t i = 0; i < wide.size(); ++i) {
    const float value = wide[i] * factor;
    const float code = std::nearbyint(std::clamp(value, -8.0f, 7.0f));
    out.codes.values[i] = code;
    out.inside.values[i] = value >= -8.0f && value <= 7.0f ? 1.0f : 0.0f;
    out.slopes.values[i] = value < -8.0f  ? -8.0f
                           : value > 7.0f ? 7.0f
                                          : std::nearbyint(value) - value;
  }
  return out;
}

// Leverage scores, by water-filling.
inline std::vector<double> leverage(const std::vector<double>& scores) {
  const size_t kept = scores.size() / 2;
  const double total = std::accumulate(scores.begin(), scores.end(), 0.0);
  std::vector<double> p;
  for (const double c : scores) {
    p.push_back(total > 0.0 ? c * static_cast<double>(kept) / total : 0.0);
  }
  for (size_t settled = 0; settled < kept;) {
    if (!(*std::max_element(p.begin(), p.end()) > 1.0)) break;
    settled = 0;
    double rest = 0.0;
    for (double& each : p) {
      each = std::min(each, 1.0);
      settled += each < 1.0 ? 0 : 1;
      rest += each < 1.0 ? each : 0.0;
    }
    if (rest == 0.0) break;
    for (double& each : p) {
      if (each < 1.0) each *= static_cast<double>(kept - settled) / rest;
    }
  }
  return p;
}

struct PaperSplit {
  Matrix high, low;
  double unit;  // of low; 14 of them are one of high
  // The probability with which row i of high, and row tokens + i of low, is kept.
  std::vector<double> probabilities(const std::vector<double>& of_the_other) const {
    std::vector<double> scores;
    for (const auto& [part, bins] : {std::pair{&high, 14.0}, std::pair{&low, 1.0}}) {
      for (int64_t t = 0; t < part->rows; ++t) {
        scores.push_back(bins * norm(*part, t) * of_the_other[static_cast<size_t>(t)]);
      }
    }
    return leverage(scores);
  }
  static double norm(const Matrix& m, int64_t row) {
    double squares = 0.0;
    for (int64_t c = 0; c < m.cols; ++c) {
      squares += static_cast<double>(m.at(row, c)) * static_cast<double>(m.at(row, c));
    }
    return std::sqrt(squares);
  }
};

inline PaperSplit paper_split(const Matrix& dy, int limit, const StepScalars& scalars,
                              int64_t first_token = 0) {
  float largest = 0.0f;
  for (const float value : dy.values) largest = std::max(largest, std::abs(value));
  const float unit = largest / 98.0f;
  const auto top = static_cast<float>(limit);
  PaperSplit out{Matrix(dy.rows, dy.cols), Matrix(dy.rows, dy.cols), static_cast<double>(unit)};
  for (int64_t t = 0; t < dy.rows; ++t) {
    for (int64_t n = 0; n < dy.cols; ++n) {
      const float value = dy.at(t, n) / unit;
      const float high = std::nearbyint(std::clamp(value / 14.0f, -top, top));
      const float uniform =
          gradient_uniform(scalars, "the.weight split", first_token + t, n, dy.cols);
      out.high.at(t, n) = high;
      out.low.at(t, n) = std::clamp(stochastic(value - 14.0f * high, uniform), -top, top);
    }
  }
  return out;
}

// The modes of the gradient.
struct PaperGradient {
  const char* split;     // int4_bit_split
  const char* sampling;  // int4_sampling
  int limit() const { return std::string(split) == "off" ? 0 : std::stoi(split); }
  bool samples(const char* which) const {
    return std::string(sampling) == "both" || std::string(sampling) == which;
  }
};

class Int4PaperTest : public ::testing::Test {
 protected:
  using Options = std::initializer_list<std::pair<const char*, const char*>>;
  std::unique_ptr<const Product> paper(Options more) const {
    std::vector<std::pair<const char*, const char*>> all(more);
    all.insert(all.begin(), {"int4_mode", "paper"});
    OptionSet options;
    const ProductEntry& entry = find_product("int4");
    options.add({entry.name, entry.options});
    for (const auto& [name, value] : all) options.set(name, value, "test");
    return entry.make(options, *ops_);
  }
  Context context(Ops& ops) { return {ops, scratch_, &scalars_, true}; }

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
  // What the product keeps beside the weight, with the first values that it gives them.
  struct Parameters {
    std::vector<Weight> weights;
    std::vector<const Weight*> all;
    float& value(size_t place, int64_t at = 0) const {
      return all[place]->as_f32().data<float>()[at];
    }
  };
  std::unique_ptr<Parameters> parameters_of(const Product& product, const Weight& weight) {
    auto parameters = std::make_unique<Parameters>();
    for (WeightSpec& spec : product.parameters(weight.spec())) {
      parameters->weights.emplace_back(memory_, std::move(spec), find_format("f32"));
    }
    for (const Weight& each : parameters->weights) parameters->all.push_back(&each);
    Context run = context(*ops_);
    product.initialise(run, {weight, parameters->all});
    return parameters;
  }

  struct Results {
    Matrix y, dx, dw, left, right, steps, starts;
    std::vector<float> all() const {
      std::vector<float> out;
      for (const Matrix* m : {&y, &dx, &dw, &left, &right, &steps}) {
        out.insert(out.end(), m->values.begin(), m->values.end());
      }
      return out;
    }
  };
  // Everything but projections, which come with p and q.
  Results run(const Product& product, const Weight& weight, const Parameters& parameters, Matrix x,
              Matrix dy, Ops& ops, bool projects = false) {
    Context run = context(ops);
    const Arena::Frame frame(scratch_);
    const int64_t out = weight.rows(), in = weight.cols();
    Results results{Matrix(x.rows, out), Matrix(x.rows, in), Matrix(out, in), Matrix(in, 3),
                    Matrix(out, 3),      Matrix(1, 2),       Matrix(2, 2)};
    const LinearUse use(weight, parameters.all);
    const Operand operand = product.prepare(run, x.view());
    product.forward(run, operand, use, results.y.view(), Accumulate::no);
    const Gradient g = product.backward(run, operand, dy.view(), use);
    g.add_dx(results.dx.view(), Accumulate::no);
    g.add_dw(results.dw.view());
    if (projects) {
      Matrix p = random_matrix(out, 3, 8), q = random_matrix(in, 3, 9);
      g.add_left(p.view(), results.left.view());
      g.add_right(q.view(), results.right.view());
    }
    for (size_t i = 0; i < std::min<size_t>(2, parameters.all.size()); ++i) {
      const auto at = static_cast<int64_t>(i);
      product.add_parameter_gradient(g, i, results.steps.view().columns(at, at + 1));
      Matrix start(2, 1);
      product.add_parameter_start(g, i, start.view());
      results.starts.at(0, at) = start.at(0, 0);
      results.starts.at(1, at) = start.at(1, 0);
    }
    EXPECT_EQ(product.parameters(weight.spec()).size(), parameters.all.size());
    return results;
  }
  Results run(const Product& product, const Weight& weight, const Parameters& parameters,
              const Matrix& x, const Matrix& dy) {
    return run(product, weight, parameters, x, dy, *ops_);
  }

  // dy as it is multiplied, in units of the split, or as it is: [tokens, out].
  std::vector<double> joined(const Matrix& dy, const PaperGradient& mode, const char* which,
                             const std::vector<double>& of_the_other) const {
    std::vector<double> out(dy.values.begin(), dy.values.end());
    if (mode.limit() == 0) return out;
    const PaperSplit split = paper_split(dy, mode.limit(), scalars_);
    std::vector<double> p(static_cast<size_t>(2 * dy.rows), 1.0);
    if (mode.samples(which)) p = split.probabilities(of_the_other);
    const std::string name = std::string("the.weight sampled for ") + which;
    const RandomStream random = RandomStream::make(
        scalars_.seed, RandomPurpose::gradient_rounding, scalars_.step,
        name_hash((std::string(which) == "dw" ? "the.weight sampled for dW" : name).c_str()));
    for (int64_t t = 0; t < dy.rows; ++t) {
      double weights[2];
      for (int64_t half = 0; half < 2; ++half) {
        const double each = p[static_cast<size_t>(half * dy.rows + t)];
        const auto uniform =
            static_cast<double>(random.uniform(static_cast<uint64_t>(2 * t + half)));
        weights[half] = !mode.samples(which) ? 1.0 : uniform < each ? 1.0 / each : 0.0;
      }
      for (int64_t n = 0; n < dy.cols; ++n) {
        out[static_cast<size_t>(t * dy.cols + n)] =
            split.unit * (14.0 * weights[0] * static_cast<double>(split.high.at(t, n)) +
                          weights[1] * static_cast<double>(split.low.at(t, n)));
      }
    }
    return out;
  }

  std::unique_ptr<Ops> ops_ = std::make_unique<SmallPanelOps>(make_test_ops(1));
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, int64_t{128} << 20};
  StepScalars scalars_ = [] {
    StepScalars scalars{};
    scalars.seed = 11;
    scalars.step = 100;  // behind the cold ones
    return scalars;
  }();
};

}  // namespace jackscrew
