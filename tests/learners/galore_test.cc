// One matrix that learns in subspaces, against GaLore's equations in double.
#include "learners/galore.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <random>
#include <vector>

#include "products/dense.h"
#include "tests/support/test_ops.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

struct Doubles {
  int64_t rows = 0, cols = 0;
  std::vector<double> values;
  Doubles() = default;
  Doubles(int64_t r, int64_t c) : rows(r), cols(c), values(static_cast<size_t>(r * c)) {}
  double& at(int64_t r, int64_t c) { return values[static_cast<size_t>(r * cols + c)]; }
  double at(int64_t r, int64_t c) const { return values[static_cast<size_t>(r * cols + c)]; }
};

Doubles times(const Doubles& a, const Doubles& b) {
  Doubles out(a.rows, b.cols);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t k = 0; k < a.cols; ++k) {
      for (int64_t j = 0; j < b.cols; ++j) out.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return out;
}

Doubles transposed(const Doubles& a) {
  Doubles out(a.cols, a.rows);
  for (int64_t i = 0; i < a.rows; ++i) {
    for (int64_t j = 0; j < a.cols; ++j) out.at(j, i) = a.at(i, j);
  }
  return out;
}

Doubles doubles_of(const Tensor& from) {
  Doubles out(from.rows(), from.cols());
  for (int64_t i = 0; i < from.size(); ++i) {
    out.values[static_cast<size_t>(i)] = static_cast<double>(from.data<float>()[i]);
  }
  return out;
}

double largest_difference(const Doubles& a, const Doubles& b) {
  double worst = 0.0;
  for (size_t i = 0; i < a.values.size(); ++i) {
    worst = worse(worst, std::abs(a.values[i] - b.values[i]));
  }
  return worst;
}

double largest(const Doubles& a) {
  return largest_difference(a, Doubles(a.rows, a.cols));
}

// The first `count` left singular vectors, by orthogonal iteration until nothing moves.
Doubles singular_vectors(const Doubles& g, int64_t count) {
  const Doubles square = times(g, transposed(g));
  std::mt19937 random(1);
  std::normal_distribution<double> normal;
  Doubles basis(g.rows, count);
  for (double& value : basis.values) value = normal(random);
  for (int round = 0; round < 4000; ++round) {
    if (round > 0) basis = times(square, basis);
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t before = 0; before <= j; ++before) {
        double dot = 0.0;
        for (int64_t i = 0; i < g.rows; ++i) dot += basis.at(i, j) * basis.at(i, before);
        for (int64_t i = 0; i < g.rows; ++i) {
          basis.at(i, j) = before == j ? basis.at(i, j) / std::sqrt(dot)
                                       : basis.at(i, j) - dot * basis.at(i, before);
        }
      }
    }
  }
  return basis;
}

Doubles projector(const Doubles& basis) {
  return times(basis, transposed(basis));
}

StepScalars step_scalars() {
  StepScalars scalars{};
  scalars.learning_rate = 0.01f;
  scalars.seed = 42;
  scalars.clip_scale = 1.0f;
  return scalars;
}

struct Batch {
  std::vector<float> x, dy;
  int64_t tokens;
};

// What the learner reads of a run.
constexpr OptionSpec kRunOptions[] = {
    {"learning_rate", OptionType::number, "0.01", ""},
    {"max_steps", OptionType::integer, "20", ""},
    {"weight_decay", OptionType::number, "0", ""},
};
using Settings = std::map<std::string, std::string>;

std::unique_ptr<Learner> galore_learner(const Settings& settings) {
  OptionSet options;
  options.add({"run", kRunOptions});
  options.add({"galore", galore_options()});
  options.set("galore_rank", "4", "test");
  options.set("projection_update_gap", "8", "test");
  for (const auto& [name, value] : settings) options.set(name, value, "test");
  return make_galore_learner(options);
}

// A weight with its slot, trained on random batches.
class Rig {
 public:
  Rig(int64_t rows, int64_t cols, const Settings& settings, const char* format = "f32",
      DType operands = DType::f32)
      : rows_(rows), cols_(cols) {
    learner_ = galore_learner(settings);
    const WeightSpec spec{
        "model.layers.0.mlp.up_proj.weight", rows, cols, WeightKind::linear, 0, "up_proj"};
    learner_->plan(std::span(&spec, 1));
    weight_ = std::make_unique<Weight>(memory_, spec, find_format(format));
    std::vector<float> values(static_cast<size_t>(rows * cols));
    std::mt19937 random(2);
    std::normal_distribution<float> normal(0.0f, 0.1f);
    for (float& value : values) value = normal(random);
    weight_->publish(*ops_, Tensor(values.data(), DType::f32, {rows, cols}), {}, scratch_);
    LearnerContext context{memory_,     memory_, scratch_, &scalars_, *ops_,
                           *optimizer_, 42,      true,     {},        nullptr};
    context.operand_dtype = operands;
    slot_ = learner_->make_slot(context, *weight_);
    learner_->reserve(context_);
    learner_->begin_run(20);
  }

  static Batch batch(int64_t rows, int64_t cols, uint32_t seed, int64_t tokens = 24) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal;
    Batch out{std::vector<float>(static_cast<size_t>(tokens * cols)),
              std::vector<float>(static_cast<size_t>(tokens * rows)), tokens};
    for (float& value : out.x) value = normal(random);
    for (float& value : out.dy) value = 0.1f * normal(random);
    // Some directions count more than others, the same ones in every batch.
    for (size_t i = 0; i < out.x.size(); ++i) {
      out.x[i] *= std::pow(0.6f, static_cast<float>(i % static_cast<size_t>(cols)));
    }
    for (size_t i = 0; i < out.dy.size(); ++i) {
      out.dy[i] *= std::pow(0.7f, static_cast<float>(i % static_cast<size_t>(rows)));
    }
    return out;
  }

  void begin(int64_t step) {
    scalars_.step = static_cast<uint32_t>(step);
    scratch_.reset();
    learner_->begin_step(context_, step);
  }
  void backward(Batch batch) {
    const Arena::Frame frame(scratch_);
    const Tensor x(batch.x.data(), DType::f32, {batch.tokens, cols_});
    const Tensor dy(batch.dy.data(), DType::f32, {batch.tokens, rows_});
    const Product& product = f32_product();
    const Operand operand = product.prepare(context_, x);
    slot_->backward(product.backward(context_, operand, dy, *weight_), nullptr);
  }
  void apply(double decay = 0.0) { slot_->apply(context_, decay); }
  void step(int64_t step) {
    begin(step);
    backward(batch(rows_, cols_, 100 + static_cast<uint32_t>(step)));
    apply();
  }

  Tensor state(const std::string& part) const {
    Tensor found;
    slot_->visit([&](const StateRef& ref) {
      if (ref.name == weight_->name() + part) found = ref.view;
    });
    return found;
  }
  Tensor basis() const {
    const Tensor bytes = state(".projection");
    const int64_t rows = div_exact(bytes.bytes(), 16);
    return {bytes.raw(), DType::f32, {rows, 4}};
  }
  Doubles values() {
    std::vector<float> out(static_cast<size_t>(rows_ * cols_));
    const Tensor to(out.data(), DType::f32, {rows_, cols_});
    weight_->decode(*ops_, 0, rows_, to);
    return doubles_of(to);
  }
  Weight& weight() { return *weight_; }
  StepScalars& scalars() { return scalars_; }
  int64_t decomposition_bytes() const { return learner_->decomposition_bytes(); }

 private:
  int64_t rows_, cols_;
  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 22};
  StepScalars scalars_ = step_scalars();
  Context context_{*ops_, scratch_, &scalars_, true};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {0.9, 0.95, 1e-6});
  std::unique_ptr<Learner> learner_;
  std::unique_ptr<Weight> weight_;
  std::unique_ptr<LearnerSlot> slot_;
};

Doubles gradient_of(const Batch& batch, int64_t rows, int64_t cols) {
  Doubles g(rows, cols);
  for (int64_t t = 0; t < batch.tokens; ++t) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < cols; ++c) {
        g.at(r, c) += static_cast<double>(batch.dy[static_cast<size_t>(t * rows + r)]) *
                      static_cast<double>(batch.x[static_cast<size_t>(t * cols + c)]);
      }
    }
  }
  return g;
}

struct EquationCase {
  const char* name;
  int64_t rows, cols;
  const char* subspace;
  const char* basis;
};

void PrintTo(const EquationCase& equation, std::ostream* out) {
  *out << equation.name;
}

class GaloreEquations : public ::testing::TestWithParam<EquationCase> {};

// 20 steps with refreshes before steps 1, 9 and 17. Each subspace is what the gradients say; signs
// and order within it are the slot's own.
TEST_P(GaloreEquations, HoldOverTwentySteps) {
  const EquationCase& of = GetParam();
  Rig rig(of.rows, of.cols,
          {{"subspace", of.subspace}, {"subspace_basis", of.basis}, {"projection_window", "1"}});
  const bool tall = of.rows >= of.cols;
  Doubles w = rig.values();
  Doubles p = doubles_of(rig.basis());
  Doubles m(tall ? of.rows : of.cols, 4), v(m.rows, 4), last_gradient;
  const double scale = 1.0 / std::sqrt(4.0 / static_cast<double>(tall ? of.cols : of.rows));
  for (int64_t step = 0; step < 20; ++step) {
    const Batch batch = Rig::batch(of.rows, of.cols, 100 + static_cast<uint32_t>(step));
    rig.begin(step);
    if (step % 8 == 1) {
      const Doubles now = doubles_of(rig.basis());
      const Doubles g = tall ? transposed(last_gradient) : last_gradient;
      const bool exact = std::string(of.subspace) == "svd";
      const Doubles wanted = singular_vectors(exact ? g : times(times(g, transposed(g)), p), 4);
      EXPECT_LE(largest_difference(projector(now), projector(wanted)), 1e-3) << step;
      const Doubles c = times(transposed(p), now);
      if (std::string(of.basis) == "principal") {
        Doubles squares = c;
        for (double& value : squares.values) value *= value;
        const Doubles before = v;
        m = times(m, c);
        v = times(v, squares);
        for (int64_t r = 0; r < v.rows; ++r) {
          double mean = 0.0;
          for (int64_t k = 0; k < 4; ++k) mean += before.at(r, k) / 4.0;
          for (int64_t k = 0; k < 4; ++k) v.at(r, k) += 1e-3 * mean;
        }
      }
      p = now;
    }
    rig.backward(batch);
    rig.apply();
    last_gradient = gradient_of(batch, of.rows, of.cols);
    const Doubles r = times(tall ? last_gradient : transposed(last_gradient), p);
    Doubles n(r.rows, 4);
    const double rate =
        0.01 * scale * std::sqrt(1.0 - std::pow(0.95, step + 1)) / (1.0 - std::pow(0.9, step + 1));
    // With epsilon outside of the bias correction, as torch has it.
    const double epsilon = 1e-6 * std::sqrt(1.0 - std::pow(0.95, step + 1));
    for (size_t i = 0; i < n.values.size(); ++i) {
      m.values[i] = 0.9 * m.values[i] + 0.1 * r.values[i];
      v.values[i] = 0.95 * v.values[i] + 0.05 * r.values[i] * r.values[i];
      n.values[i] = rate * m.values[i] / (std::sqrt(v.values[i]) + epsilon);
    }
    const Doubles change = tall ? times(n, transposed(p)) : times(p, transposed(n));
    for (size_t i = 0; i < w.values.size(); ++i) w.values[i] -= change.values[i];
    EXPECT_LE(largest_difference(rig.values(), w), 1e-4 * largest(w)) << step;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Settings, GaloreEquations,
    ::testing::Values(EquationCase{"tall_as_published", 20, 12, "svd", "original"},
                      EquationCase{"wide_as_published", 12, 20, "svd", "original"},
                      EquationCase{"tall", 20, 12, "power", "principal"},
                      EquationCase{"wide", 12, 20, "power", "principal"},
                      EquationCase{"square_aligned", 16, 16, "power", "aligned"}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(GaloreSlot, MicroBatchesAddUp) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{20, 12}, {12, 20}}) {
    Rig whole(rows, cols, {}), parts(rows, cols, {});
    const Batch batch = Rig::batch(rows, cols, 7);
    whole.begin(0);
    whole.backward(batch);
    parts.begin(0);
    for (int64_t at = 0; at < batch.tokens; at += 6) {
      parts.backward({{batch.x.begin() + at * cols, batch.x.begin() + (at + 6) * cols},
                      {batch.dy.begin() + at * rows, batch.dy.begin() + (at + 6) * rows},
                      6});
    }
    const Doubles a = doubles_of(whole.state(".gradient"));
    EXPECT_LE(largest_difference(a, doubles_of(parts.state(".gradient"))), 1e-6 * largest(a));
  }
}

// What a step adds is a product of what bf16 holds: two roundings of 2^-9 in each of its terms.
TEST(GaloreSlot, OperandsInBf16MoveWeightsAlike) {
  for (const auto& [rows, cols] : {std::pair<int64_t, int64_t>{20, 12}, {12, 20}}) {
    for (const char* projection : {"f32", "bf16", "int4"}) {
      const Settings settings{{"projection_dtype", projection}};
      Rig exact(rows, cols, settings), rounded(rows, cols, settings, "f32", DType::bf16);
      const Doubles before = exact.values();
      exact.step(0);
      rounded.step(0);
      const double apart = largest_difference(rounded.values(), exact.values());
      EXPECT_GT(apart, 0.0) << projection;
      EXPECT_LE(apart, largest_difference(exact.values(), before) / 128.0) << projection;
    }
  }
}

// Nothing but the subspace counts: neither the order nor the signs of its basis.
TEST(GaloreSlot, OrderAndSignsOfTheBasisDoNotMatter) {
  Rig rig(20, 12, {{"projection_window", "2"}}), other(20, 12, {{"projection_window", "2"}});
  const Tensor basis = other.basis();
  std::vector<float> copy(basis.data<float>(), basis.data<float>() + basis.size());
  for (int64_t r = 0; r < basis.rows(); ++r) {
    for (int64_t k = 0; k < 4; ++k) {
      basis.data<float>()[r * 4 + k] =
          (k % 2 == 0 ? -1.0f : 1.0f) * copy[static_cast<size_t>(r * 4 + (k + 1) % 4)];
    }
  }
  for (int64_t step = 0; step < 20; ++step) {
    rig.step(step);
    other.step(step);
  }
  EXPECT_LE(largest_difference(rig.values(), other.values()), 1e-5 * largest(rig.values()));
}

TEST(GaloreSlot, AStepThatIsNotFiniteChangesNothing) {
  for (const char* format : {"f32", "bf16", "int8_affine", "int8", "int8_row"}) {
    Rig rig(20, 12, {}, format);
    rig.step(0);
    const Doubles before = rig.values();
    rig.begin(1);
    rig.backward(Rig::batch(20, 12, 5));
    rig.scalars().finite = 0;
    rig.apply(0.1);
    EXPECT_EQ(rig.values().values, before.values) << format;
    EXPECT_EQ(largest(doubles_of(rig.state(".gradient"))), 0.0) << format;
  }
}

TEST(GaloreSlot, DecaysAsFullTrainingDoes) {
  Rig rig(20, 12, {});
  const Doubles before = rig.values();
  rig.begin(0);
  rig.apply(0.5);
  const Doubles after = rig.values();
  for (size_t i = 0; i < after.values.size(); ++i) {
    // Two roundings of values below 0.5.
    EXPECT_NEAR(after.values[i], before.values[i] * (1.0 - 0.01 * 0.5), 4e-8);
  }
}

// The first stage of a pipeline, which tells of it, may hold few of the matrices, or none.
TEST(GaloreNotes, AreOfTheWholeModel) {
  const auto learner = galore_learner({{"galore_rank", "8"}, {"update_rounding", "nearest"}});
  const std::vector<WeightSpec> weights = {
      {"model.layers.0.mlp.up_proj.weight", 20, 12, WeightKind::linear, 0, "up_proj"},
      {"model.layers.1.mlp.up_proj.weight", 20, 12, WeightKind::linear, 1, "up_proj"}};
  learner->plan(weights);
  learner->begin_run(20);
  const LearnerNotes notes = learner->notes();
  ASSERT_EQ(notes.lines.size(), 2u);
  const std::string of_first = " in model.layers.0.mlp.up_proj.weight), kept as ";
  EXPECT_TRUE(notes.lines[0].starts_with("2 matrices in subspaces of rank 8 (rank 8" + of_first))
      << notes.lines[0];
  EXPECT_NE(notes.lines[1].find("a learning rate of 0.01 "), std::string::npos) << notes.lines[1];
  ASSERT_EQ(notes.warnings.size(), 2u);
  EXPECT_NE(notes.warnings[0].find("breaks even"), std::string::npos) << notes.warnings[0];
  EXPECT_TRUE(notes.warnings[1].starts_with("update_rounding=nearest")) << notes.warnings[1];
  const auto quarter = galore_learner({{"galore_rank", "25%"}});
  quarter->plan(weights);
  quarter->begin_run(20);
  const std::string line = quarter->notes().lines.at(0);
  EXPECT_TRUE(line.starts_with("2 matrices in subspaces of rank 25% (rank 3" + of_first)) << line;
}

// With a side of 1, no rank breaks even.
TEST(GaloreNotes, OfAMatrixWithASideOfOne) {
  const auto learner = galore_learner({{"galore_rank", "1"}});
  const std::vector<WeightSpec> weights = {
      {"model.layers.0.mlp.up_proj.weight", 20, 1, WeightKind::linear, 0, "up_proj"}};
  learner->plan(weights);
  learner->begin_run(20);
  EXPECT_EQ(
      learner->notes().warnings,
      std::vector<std::string>{"rank 1 of model.layers.0.mlp.up_proj.weight [20, 1] takes more "
                               "arithmetic than its whole gradient; use method=full"});
}

// Matrices in double at once, and what is copied in f32.
TEST(GaloreSlot, SaysWhatADecompositionTakesOfTheHost) {
  const auto bytes = [](int64_t rows, int64_t cols, const Settings& settings) {
    return Rig(rows, cols, settings).decomposition_bytes();
  };
  // Rank 4: the small problems are [4, 4].
  EXPECT_EQ(bytes(20, 12, {{"subspace", "random"}}), (3 * 8 + 4) * 16);
  EXPECT_EQ(bytes(20, 12, {}), 4 * 8 * 16);
  EXPECT_EQ(bytes(20, 12, {{"subspace_basis", "aligned"}}), 6 * 8 * 16);
  // The gradient and three [side, side], or the gradient and its transpose.
  const Settings svd = {{"subspace", "svd"}};
  EXPECT_EQ(bytes(20, 12, svd), 8 * 20 * 12 + 3 * 8 * 12 * 12);
  EXPECT_EQ(bytes(200, 4, svd), 2 * 8 * 200 * 4);
  EXPECT_EQ(bytes(4, 200, svd), (8 + 4) * 4 * 200);
  EXPECT_EQ(bytes(20, 12, {{"subspace", "svd"}, {"galore_side", "big"}}),
            8 * 20 * 12 + 3 * 8 * 20 * 20);
}

// A window without gradients, such as one of frozen inputs, keeps the subspace.
TEST(GaloreSlot, KeepsItsSubspaceWhereNothingIsKnown) {
  Rig rig(20, 12, {{"projection_window", "1"}});
  const Doubles before = doubles_of(rig.basis());
  rig.begin(0);
  rig.apply();
  rig.begin(1);
  EXPECT_EQ(doubles_of(rig.basis()).values, before.values);
  // Nor does one whose gradients are among the least numbers of f32 say anything.
  Batch least = Rig::batch(20, 12, 1);
  for (float& value : least.dy) value *= 1e-41f;
  rig.backward(least);
  rig.apply();
  rig.begin(2);
  EXPECT_EQ(doubles_of(rig.basis()).values, before.values);
}

}  // namespace
}  // namespace jackscrew
