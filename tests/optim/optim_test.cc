// AdamW and the gradient norm against double precision.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/error.h"
#include "optim/adamw.rows.h"
#include "optim/gradient_norm.h"
#include "optim/optimizer.h"
#include "optim/squares.h"
#include "tests/support/test_ops.h"
#include "tests/support/values.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

// torch.optim.AdamW, as its documentation writes it down.
struct Reference {
  double beta1, beta2, epsilon;
  std::vector<double> p, m, v;
  int steps = 0;

  void step(const std::vector<float>& gradient, double clip, double rate, double decay) {
    ++steps;
    for (size_t i = 0; i < p.size(); ++i) {
      const double g = static_cast<double>(gradient[i]) * clip;
      p[i] -= rate * decay * p[i];
      m[i] = beta1 * m[i] + (1.0 - beta1) * g;
      v[i] = beta2 * v[i] + (1.0 - beta2) * g * g;
      const double m_hat = m[i] / (1.0 - std::pow(beta1, steps));
      const double v_hat = v[i] / (1.0 - std::pow(beta2, steps));
      p[i] -= rate * m_hat / (std::sqrt(v_hat) + epsilon);
    }
  }
};

double largest_difference(const float* actual, const std::vector<double>& expected) {
  double worst = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = worse(worst, std::abs(static_cast<double>(actual[i]) - expected[i]));
  }
  return worst;
}

double largest(const std::vector<double>& values) {
  double out = 0.0;
  for (const double value : values) out = std::max(out, std::abs(value));
  return out;
}

class AdamwTest : public ::testing::Test {
 protected:
  // More than a chunk, and not a multiple of one.
  static constexpr size_t kCount = 20011;

  Context context() { return {*ops_, scratch_, &scalars_, true}; }

  std::map<std::string, Tensor> states_of(const OptimizerState& state) const {
    std::map<std::string, Tensor> out;
    state.visit("w", [&](const StateRef& ref) {
      EXPECT_TRUE(ref.save) << ref.name;
      out[ref.name] = ref.view;
    });
    return out;
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 20};
  StepScalars scalars_{};
};

TEST_F(AdamwTest, TwentyStepsOfTorch) {
  struct Case {
    double beta1, beta2, epsilon, decay, clip, scale;
  };
  for (const Case& c :
       {Case{0.9, 0.999, 1e-8, 0.0, 1.0, 1.0}, Case{0.9, 0.95, 1e-6, 0.1, 0.25, 1.0},
        Case{0.8, 0.999, 1e-8, 0.01, 0.5, 0.25}}) {
    const auto optimizer = make_optimizer("adamw", {c.beta1, c.beta2, c.epsilon});
    const auto state = optimizer->make_state(memory_, kCount);
    std::vector<float> p = random_values(kCount, 1);
    const std::vector<double> start(p.begin(), p.end());
    Reference reference{c.beta1,
                        c.beta2,
                        c.epsilon,
                        start,
                        std::vector<double>(kCount),
                        std::vector<double>(kCount)};
    const auto states = states_of(*state);
    for (uint32_t step = 0; step < 20; ++step) {
      std::vector<float> g = random_values(kCount, 100 + step, 0.1f);
      scalars_.learning_rate = 0.0078125f / static_cast<float>(1 + step % 3);  // exact in float
      scalars_.clip_scale = static_cast<float>(c.clip);
      scalars_.finite = 1;
      reference.step(g, c.clip, static_cast<double>(scalars_.learning_rate) * c.scale, c.decay);
      Context run = context();
      state->apply(run, view_of(p), view_of(g), c.scale, c.decay);
      ASSERT_EQ(std::count(g.begin(), g.end(), 0.0f), static_cast<ptrdiff_t>(kCount));
      // The moments round once or twice a step, the parameter twice.
      const double roundings = 0x1p-24 * (step + 3);
      ASSERT_LE(largest_difference(states.at("w.m").data<float>(), reference.m),
                2 * roundings * largest(reference.m))
          << step;
      ASSERT_LE(largest_difference(states.at("w.v").data<float>(), reference.v),
                2 * roundings * largest(reference.v))
          << step;
      ASSERT_LE(largest_difference(p.data(), reference.p), 2 * roundings * largest(reference.p))
          << step;
    }
  }
}

// The first update is rate * sign(g) when epsilon is small: bias corrections and 1 - beta cancel,
// as they do in torch, to the last places of a float.
TEST_F(AdamwTest, FirstUpdateIsTheRate) {
  const auto state = make_optimizer("adamw", {0.9, 0.999, 1e-20})->make_state(memory_, kCount);
  std::vector<float> p(kCount);
  std::vector<float> g = random_values(kCount, 3);
  const std::vector<float> gradient = g;
  scalars_.learning_rate = 0.5f;
  scalars_.clip_scale = 1.0f;
  scalars_.finite = 1;
  Context run = context();
  state->apply(run, view_of(p), view_of(g), 1.0, 0.0);
  for (size_t i = 0; i < kCount; ++i) {
    ASSERT_NEAR(p[i], gradient[i] > 0 ? -0.5f : 0.5f, 5e-7f) << i;
  }
}

TEST_F(AdamwTest, SkipsAStepThatIsNotFinite) {
  const auto optimizer = make_optimizer("adamw", {});
  const auto skipping = optimizer->make_state(memory_, kCount);
  const auto plain = optimizer->make_state(memory_, kCount);
  std::vector<float> p = random_values(kCount, 1);
  std::vector<float> q = p;
  scalars_.learning_rate = 0.01f;
  scalars_.clip_scale = 1.0f;
  Context run = context();
  for (uint32_t step = 0; step < 4; ++step) {
    const std::vector<float> gradient = random_values(kCount, 50 + step);
    std::vector<float> g = gradient;
    scalars_.finite = 1;
    skipping->apply(run, view_of(p), view_of(g), 1.0, 0.1);
    g = gradient;
    plain->apply(run, view_of(q), view_of(g), 1.0, 0.1);

    std::vector<float> bad = gradient;
    bad[7] = std::numeric_limits<float>::quiet_NaN();
    bad[kCount - 1] = std::numeric_limits<float>::infinity();
    scalars_.finite = 0;
    skipping->apply(run, view_of(p), view_of(bad), 1.0, 0.1);
    EXPECT_EQ(std::count(bad.begin(), bad.end(), 0.0f), static_cast<ptrdiff_t>(kCount));
    EXPECT_EQ(std::memcmp(p.data(), q.data(), kCount * sizeof(float)), 0) << step;
    const auto a = states_of(*skipping);
    const auto b = states_of(*plain);
    for (const char* name : {"w.m", "w.v"}) {
      EXPECT_EQ(std::memcmp(a.at(name).raw(), b.at(name).raw(), kCount * sizeof(float)), 0) << name;
    }
    const auto count_of = [](const Tensor& counter) {
      return static_cast<const AdamwFactors*>(counter.raw())->step;
    };
    EXPECT_EQ(count_of(a.at("w.adamw")), static_cast<int32_t>(step + 1));
    EXPECT_EQ(count_of(b.at("w.adamw")), static_cast<int32_t>(step + 1));
  }
}

TEST_F(AdamwTest, BooksItsStates) {
  const int64_t before = memory_.ledger().current[static_cast<size_t>(Purpose::optimizer)];
  const auto state = make_optimizer("adamw", {})->make_state(memory_, kCount);
  const int64_t after = memory_.ledger().current[static_cast<size_t>(Purpose::optimizer)];
  EXPECT_EQ(after - before, 2 * round_up(kCount * 4, 64) + round_up(sizeof(AdamwFactors), 64));
  EXPECT_THROW(make_optimizer("adamwx", {}), Error);
}

class GradientNormTest : public ::testing::Test {
 protected:
  // Around the chunk of the partial sums.
  GradientNormTest() {
    uint32_t seed = 0;
    for (const size_t count : {1u, 16384u, 16385u, 50001u}) {
      gradients_.push_back(random_values(count, ++seed, 0.3f));
    }
  }

  StepScalars compute(float max_grad_norm, double loss_sum = 1.0, int threads = 2) {
    const auto ops = make_test_ops(threads);
    Memory memory("host", make_host_backing(), 0);
    Arena scratch(memory, Purpose::workspace, 64);
    std::vector<Tensor> views;
    std::vector<int64_t> sizes;
    for (auto& gradient : gradients_) {
      views.push_back(view_of(gradient));
      sizes.push_back(views.back().size());
    }
    StepScalars scalars{};
    scalars.max_grad_norm = max_grad_norm;
    scalars.loss_sum = loss_sum;
    Context run{*ops, scratch, &scalars, true};
    GradientNorm norm(memory, sizes);
    norm.watch(views);
    norm.compute(run);
    return scalars;
  }

  double exact() const {
    double squares = 0.0;
    for (const auto& gradient : gradients_) {
      for (const float g : gradient) squares += static_cast<double>(g) * static_cast<double>(g);
    }
    return std::sqrt(squares);
  }

  std::vector<std::vector<float>> gradients_;
};

TEST_F(GradientNormTest, EqualsTheNormInDouble) {
  const double norm = exact();
  const StepScalars scalars = compute(0.0f);
  EXPECT_NEAR(static_cast<double>(scalars.grad_norm), norm, norm * 0x1p-24);
  EXPECT_EQ(scalars.clip_scale, 1.0f);
  EXPECT_EQ(scalars.finite, 1);
}

TEST_F(GradientNormTest, ClipsAsTorchDoes) {
  const double norm = exact();
  const double clipped = static_cast<double>(compute(0.5f).clip_scale);
  EXPECT_NEAR(clipped, 0.5 / (norm + 1e-6), clipped * 1e-6);
  EXPECT_EQ(compute(static_cast<float>(norm * 1.01)).clip_scale, 1.0f);
  for (auto& gradient : gradients_) std::fill(gradient.begin(), gradient.end(), 0.0f);
  EXPECT_EQ(compute(0.5f).clip_scale, 1.0f);
  EXPECT_EQ(compute(0.5f).grad_norm, 0.0f);
}

TEST_F(GradientNormTest, LargeGradientsDoNotOverflow) {
  for (auto& gradient : gradients_) {
    for (float& g : gradient) g *= 1e30f;
  }
  const double norm = exact();
  const StepScalars scalars = compute(1.0f);
  EXPECT_EQ(scalars.finite, 1);
  EXPECT_NEAR(static_cast<double>(scalars.grad_norm), norm, norm * 1e-7);
  EXPECT_NEAR(static_cast<double>(scalars.clip_scale), 1.0 / norm, 1e-6 / norm);
}

TEST_F(GradientNormTest, FindsWhatIsNotFinite) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity, -infinity}) {
    for (const size_t tensor : {0u, 2u, 3u}) {
      const auto kept = gradients_;
      gradients_[tensor].back() = bad;
      EXPECT_EQ(compute(1.0f).finite, 0) << bad << " in gradient " << tensor;
      gradients_ = kept;
    }
  }
  EXPECT_EQ(compute(1.0f).finite, 1);
  // A loss that is not finite can leave finite gradients behind.
  EXPECT_EQ(compute(1.0f, static_cast<double>(nan)).finite, 0);
  EXPECT_EQ(compute(1.0f, static_cast<double>(infinity)).finite, 0);
}

// What is known of the first step that was not finite stays, for a host that looks later.
TEST_F(GradientNormTest, KeepsWhatTheFirstBadStepWas) {
  const auto ops = make_test_ops(2);
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 64);
  std::vector<float> gradient(3, 1.0f);
  StepScalars scalars{};
  Context run{*ops, scratch, &scalars, true};
  GradientNorm norm(memory, {3});
  norm.watch({view_of(gradient)});
  for (const uint32_t step : {0u, 1u, 2u}) {
    gradient[1] = step == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
    scalars.step = step;
    scalars.targets = 4.0;
    scalars.squares = 0.0;
    scalars.loss_sum = 8.0 + 4.0 * step;
    norm.compute(run);
    EXPECT_EQ(scalars.last_step, std::min(step, 1u));
    EXPECT_EQ(scalars.loss, step == 0 ? 2.0 : 3.0);
    EXPECT_EQ(scalars.finite, step == 0 ? 1 : 0);
  }
}

TEST_F(GradientNormTest, ThreadsDoNotChangeBits) {
  const StepScalars one = compute(0.5f, 1.0, 1);
  for (const int threads : {2, 3}) {
    const StepScalars more = compute(0.5f, 1.0, threads);
    EXPECT_EQ(std::memcmp(&one, &more, sizeof one), 0) << threads;
  }
}

TEST(AllFinite, FindsOneValueAmongMany) {
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 10);
  Context run{*ops, scratch, nullptr, false};
  const auto finite = [&](std::vector<float>& values) { return all_finite(run, view_of(values)); };
  for (const size_t count : {1u, 16384u, 50001u}) {
    // The largest there are: their squares are beyond the floats.
    std::vector<float> values(count, std::numeric_limits<float>::max());
    EXPECT_TRUE(finite(values)) << count;
    for (const float bad : {std::numeric_limits<float>::quiet_NaN(), HUGE_VALF, -HUGE_VALF}) {
      for (const size_t at : {size_t{0}, count / 2, count - 1}) {
        std::vector<float> damaged = values;
        damaged[at] = bad;
        EXPECT_FALSE(finite(damaged)) << bad << " at " << at << " of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace jackscrew
