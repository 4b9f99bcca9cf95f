// AdamW with 8-bit states against a reference in double that encodes its moments too.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "base/philox.h"
#include "optim/adamw_rule.h"
#include "optim/optimizer.h"
#include "quant/dynamic_map.h"
#include "tests/support/test_ops.h"
#include "tests/support/values.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

constexpr size_t kMomentBlock = 256;

// Gradients of a model: over several decades, here and there exactly 0.
std::vector<float> uneven_gradient(size_t count, uint32_t seed) {
  std::vector<float> out = random_values(count, seed, 0.1f);
  for (size_t i = 0; i < count; ++i) {
    out[i] = i % 17 == 3 ? 0.0f : out[i] * std::pow(10.0f, -static_cast<float>(i % 7));
  }
  return out;
}

std::map<std::string, Tensor> states_of(const OptimizerState& state) {
  std::map<std::string, Tensor> out;
  state.visit("w", [&](const StateRef& ref) {
    EXPECT_TRUE(ref.save) << ref.name;
    EXPECT_TRUE(out.emplace(ref.name, ref.view).second) << ref.name;
  });
  return out;
}

// One moment as the paper writes it down: codes[i] is the place of the value nearest to x / absmax,
// but for x != 0, whose code is never that of 0. Or, by a random number, of one of the two values
// around it.
struct ReferenceMoment {
  const DynamicMap& map;
  std::vector<int> codes;
  std::vector<double> absmax;

  ReferenceMoment(const DynamicMap& of, size_t count)
      : map(of), codes(count), absmax((count + kMomentBlock - 1) / kMomentBlock) {}

  double at(int code) const { return static_cast<double>(map.values[code]); }
  double value(size_t i) const { return at(codes[i]) * absmax[i / kMomentBlock]; }

  int nearest(double x) const {
    int best = -1;
    for (int code = 0; code < 256; ++code) {
      if ((x > 0) != (at(code) > 0) || (x < 0) != (at(code) < 0)) continue;
      if (best < 0 || std::abs(at(code) - x) < std::abs(at(best) - x)) best = code;
    }
    return best;
  }

  // The higher of its neighbours where x is above this.
  double limit(int lower, const double* uniform) const {
    return at(lower) + (uniform == nullptr ? 0.5 : *uniform) * (at(lower + 1) - at(lower));
  }

  int expected(double x, const double* uniform) const {
    if (uniform == nullptr) return nearest(x);
    int lower = 0;
    while (lower < 254 && at(lower + 1) <= x) ++lower;
    const int code = x > limit(lower, uniform) ? lower + 1 : lower;
    return x > 0 ? std::max(code, 1) : code;
  }

  // Which number of the stream is element i's: Team::sixty_four of row_cpu.h.
  static uint64_t numbered(size_t i) {
    const size_t block = 16 * (i / 64) + i % 16;
    return 4 * block + i % 64 / 16;
  }

  // Encodes `exact` and holds what the program stored against it. A code may be the neighbour's
  // where the number lies within the rounding of f32 of the limit between them; then it is taken
  // over, as is the absmax, so that each step is judged by itself. Returns how many codes were.
  int encode(const std::vector<double>& exact, const Tensor& stored, const Tensor& stored_absmax,
             const RandomStream* random = nullptr) {
    const double rounding = 4 * 0x1p-24;
    for (size_t block = 0; block < absmax.size(); ++block) {
      double largest = 0.0;
      const size_t end = std::min(exact.size(), (block + 1) * kMomentBlock);
      for (size_t i = block * kMomentBlock; i < end; ++i)
        largest = std::max(largest, std::abs(exact[i]));
      absmax[block] = static_cast<double>(stored_absmax.data<float>()[block]);
      EXPECT_NEAR(absmax[block], largest, rounding * largest) << "block " << block;
    }
    int differing = 0;
    for (size_t i = 0; i < exact.size(); ++i) {
      const double scale = absmax[i / kMomentBlock];
      const double x = scale > 0.0 ? exact[i] / scale : 0.0;
      const double drawn =
          random == nullptr ? 0.0 : static_cast<double>(random->uniform(numbered(i)));
      const double* uniform = random == nullptr ? nullptr : &drawn;
      const int code = expected(x, uniform);
      codes[i] = stored.data<uint8_t>()[i];
      if (codes[i] == code) continue;
      ++differing;
      EXPECT_EQ(std::abs(codes[i] - code), 1) << i;
      EXPECT_NEAR(x, limit(std::min(codes[i], code), uniform), rounding) << i;
      EXPECT_GT(value(i) * exact[i], 0.0) << i;
    }
    return differing;
  }
};

class Adamw8bitTest : public ::testing::Test {
 protected:
  // Many blocks, the last of them short.
  static constexpr size_t kCount = 20011;

  Context context() { return context(*ops_); }
  Context context(Ops& ops) { return {ops, scratch_, &scalars_, true}; }

  void set_step(float rate, float clip = 1.0f) {
    scalars_.step += 1;
    scalars_.learning_rate = rate;
    scalars_.clip_scale = clip;
    scalars_.finite = 1;
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 20};
  StepScalars scalars_{};
};

TEST_F(Adamw8bitTest, ThirtyStepsOfTheReference) {
  struct Case {
    double beta1, beta2, epsilon, decay, clip, scale;
  };
  for (const Case& c :
       {Case{0.9, 0.999, 1e-8, 0.0, 1.0, 1.0}, Case{0.9, 0.95, 1e-6, 0.1, 0.25, 1.0},
        Case{0.8, 0.999, 1e-8, 0.01, 0.5, 0.25}}) {
    const auto optimizer = make_optimizer("adamw_8bit", {c.beta1, c.beta2, c.epsilon});
    EXPECT_STREQ(optimizer->name(), "adamw_8bit");
    const auto state = optimizer->make_state(memory_, kCount);
    std::vector<float> p = random_values(kCount, 1);
    ReferenceMoment m(signed_dynamic_map(), kCount);
    ReferenceMoment v(unsigned_dynamic_map(), kCount);
    const auto states = states_of(*state);
    int differing = 0;
    for (uint32_t step = 1; step <= 30; ++step) {
      std::vector<float> g = uneven_gradient(kCount, 100 + step);
      // A block that learns nothing, and one that learns in the last step for the first time.
      std::fill(g.begin() + 512, g.begin() + 768, 0.0f);
      if (step < 30) std::fill(g.begin() + 1024, g.begin() + 1280, 0.0f);
      set_step(0.0078125f / static_cast<float>(1 + step % 3), static_cast<float>(c.clip));
      const double rate = static_cast<double>(scalars_.learning_rate) * c.scale;
      std::vector<double> new_m(kCount), new_v(kCount), new_p(kCount);
      std::vector<double> limit(kCount);
      for (size_t i = 0; i < kCount; ++i) {
        const double grad = static_cast<double>(g[i]) * c.clip;
        new_m[i] = c.beta1 * m.value(i) + (1.0 - c.beta1) * grad;
        new_v[i] = c.beta2 * v.value(i) + (1.0 - c.beta2) * grad * grad;
        const double m_hat = new_m[i] / (1.0 - std::pow(c.beta1, step));
        const double v_hat = new_v[i] / (1.0 - std::pow(c.beta2, step));
        const double before = static_cast<double>(p[i]);
        const double change = rate * m_hat / (std::sqrt(v_hat) + c.epsilon);
        new_p[i] = before - rate * c.decay * before - change;
        // m may be a small difference of large numbers; v is a sum of positive ones.
        const double m_parts = (m.value(i) == 0.0 ? 0.0 : std::abs(c.beta1 * m.value(i))) +
                               std::abs((1.0 - c.beta1) * grad) + std::abs(m.value(i));
        const double largest_change =
            rate * m_parts / (1.0 - std::pow(c.beta1, step)) / (std::sqrt(v_hat) + c.epsilon);
        limit[i] = 0x1p-24 * (2 * std::abs(before) + 8 * largest_change);
      }
      Context run = context();
      state->apply(run, view_of(p), view_of(g), c.scale, c.decay);
      ASSERT_EQ(std::count(g.begin(), g.end(), 0.0f), static_cast<ptrdiff_t>(kCount));
      for (size_t i = 0; i < kCount; ++i) {
        ASSERT_NEAR(static_cast<double>(p[i]), new_p[i], limit[i]) << step << " " << i;
      }
      differing += m.encode(new_m, states.at("w.m"), states.at("w.m_absmax"));
      const RandomStream random =
          RandomStream::make(scalars_.seed, RandomPurpose::state_rounding, scalars_.step, 0);
      differing += v.encode(new_v, states.at("w.v"), states.at("w.v_absmax"), &random);
      ASSERT_FALSE(HasFailure()) << step;
    }
    // Of 1.2 million codes: the limits of 255 pairs, each some 1e-7 wide.
    EXPECT_LT(differing, 60);
  }
}

// After one step from nothing the moments are the gradient's, whose codes are the published ones.
TEST_F(Adamw8bitTest, EncodesThePublishedVector) {
  constexpr size_t kSmallest = 4096;
  const float x[] = {.5f, -.25f, .1f, -1.0f, .003f, .75f, -.0625f, 0.0f, 1e-9f, -1e-9f};
  const int expected_m[] = {219, 53, 190, 0, 146, 237, 77, 127, 128, 126};
  const auto state = make_optimizer("adamw_8bit", {})->make_state(memory_, kSmallest);
  std::vector<float> p(kSmallest), g(kSmallest);
  std::copy(std::begin(x), std::end(x), g.begin() + kMomentBlock);
  set_step(0.5f);
  Context run = context();
  state->apply(run, view_of(p), view_of(g), 1.0, 0.0);
  const auto states = states_of(*state);
  EXPECT_FLOAT_EQ(states.at("w.m_absmax").data<float>()[1], 0.1f);
  EXPECT_FLOAT_EQ(states.at("w.v_absmax").data<float>()[1], 0.001f);
  for (size_t i = 0; i < std::size(x); ++i) {
    EXPECT_EQ(states.at("w.m").data<uint8_t>()[kMomentBlock + i], expected_m[i]) << i;
    // One of the two around it, and the smallest for what is smaller.
    const float square = x[i] * x[i];
    const DynamicMap& map = unsigned_dynamic_map();
    const int code = states.at("w.v").data<uint8_t>()[kMomentBlock + i];
    EXPECT_LE(map.values[std::max(code - 1, 0)], square) << i;
    EXPECT_GE(map.values[std::min(code + 1, 255)], square) << i;
    EXPECT_EQ(code > 0, square > 0.0f) << i;
    if (std::abs(x[i]) > 1e-3f) {
      EXPECT_NEAR(p[kMomentBlock + i], x[i] > 0.0f ? -0.5f : 0.5f, 1e-5f) << i;
    }
  }
  // Next to it a block without gradients: zeros, and nothing moves.
  EXPECT_EQ(states.at("w.m_absmax").data<float>()[2], 0.0f);
  EXPECT_EQ(states.at("w.m").data<uint8_t>()[2 * kMomentBlock], 127);
  EXPECT_EQ(p[2 * kMomentBlock], 0.0f);
}

// Gradients of a table of tokens: most are rare, and magnitudes span decades within a block. What
// one weight does is lost in any mean, so this looks at the largest change of all, in learning
// rates.
TEST_F(Adamw8bitTest, MovesNoWeightFurtherThanStatesInF32Do) {
  constexpr size_t kSize = 8192;
  constexpr float kRate = 0x1p-10f;
  struct Case {
    int decades;
    double more;  // than f32 states: measured 1.11 and 1.44; without the rule 5,000 and 10,000
  };
  for (const Case& c : {Case{2, 1.2}, Case{4, 1.5}}) {
    const auto largest_change = [&](const char* name) {
      const auto state = make_optimizer(name, {})->make_state(memory_, kSize);
      std::vector<float> p(kSize);
      std::mt19937 random(7);
      std::normal_distribution<float> normal;
      std::uniform_real_distribution<float> uniform;
      std::vector<float> share(kSize), magnitude(kSize), mean(kSize);
      for (size_t i = 0; i < kSize; ++i) {
        constexpr float kShares[] = {1.0f, 0.1f, 0.01f, 0.003f};  // of steps that give a gradient
        share[i] = kShares[random() % 4];
        magnitude[i] = std::pow(10.0f, -static_cast<float>(c.decades) * uniform(random));
        mean[i] = 0.3f * normal(random);
      }
      Context run = context();
      float largest = 0.0f;
      for (int step = 0; step < 200; ++step) {
        std::vector<float> g(kSize);
        for (size_t i = 0; i < kSize; ++i) {
          const float value = magnitude[i] * (mean[i] + 0.7f * normal(random));
          g[i] = uniform(random) < share[i] ? value : 0.0f;
        }
        set_step(kRate);
        state->apply(run, view_of(p), view_of(g), 1.0, 0.0);
        for (const float value : p) largest = worse(largest, std::abs(value));
      }
      return static_cast<double>(largest / kRate);
    };
    const double exact = largest_change("adamw");
    const double coded = largest_change("adamw_8bit");
    EXPECT_GT(exact, 100.0);
    EXPECT_LT(coded, c.more * exact) << c.decades << " decades";
  }
}

// Gradients whose squares are subnormal, or 0: a block's largest moment has no inverse then.
TEST_F(Adamw8bitTest, GradientsNextToNothingChangeNothing) {
  for (const float magnitude : {0.0f, 1e-42f, 1e-38f, 1e-30f, 1e-20f, 1e-18f}) {
    const auto state = make_optimizer("adamw_8bit", {})->make_state(memory_, kCount);
    const std::vector<float> before = random_values(kCount, 1);
    std::vector<float> p = before;
    Context run = context();
    for (uint32_t step = 0; step < 3; ++step) {
      std::vector<float> g = random_values(kCount, 50 + step, magnitude);
      set_step(0.01f);
      state->apply(run, view_of(p), view_of(g), 1.0, 0.0);
    }
    for (size_t i = 0; i < p.size(); ++i) ASSERT_NEAR(p[i], before[i], 1e-9) << magnitude;
  }
}

// Subnormal second moments are kept, too: without them a step would be the first moment by epsilon.
TEST_F(Adamw8bitTest, SubnormalMomentsBoundTheUpdate) {
  const auto state = make_optimizer("adamw_8bit", {.epsilon = 1e-25})->make_state(memory_, kCount);
  std::vector<float> p(kCount, 0.0f);
  Context run = context();
  for (const float gradient : {1e-20f, 1e-20f, 0.0f}) {
    std::vector<float> g(kCount, gradient);
    set_step(0.01f);
    state->apply(run, view_of(p), view_of(g), 1.0, 0.0);
  }
  for (const float moved : p) ASSERT_NEAR(moved, 0.0f, 0.04f);
}

TEST_F(Adamw8bitTest, SkipsAStepThatIsNotFinite) {
  const auto optimizer = make_optimizer("adamw_8bit", {});
  const auto skipping = optimizer->make_state(memory_, kCount);
  const auto plain = optimizer->make_state(memory_, kCount);
  std::vector<float> p = random_values(kCount, 1);
  std::vector<float> q = p;
  Context run = context();
  for (uint32_t step = 0; step < 4; ++step) {
    const std::vector<float> gradient = uneven_gradient(kCount, 50 + step);
    set_step(0.01f);
    std::vector<float> g = gradient;
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
    const auto b = states_of(*plain);
    for (const auto& [name, view] : states_of(*skipping)) {
      const auto bytes = static_cast<size_t>(view.bytes());
      if (name == "w.adamw") {
        EXPECT_EQ(static_cast<const AdamwFactors*>(view.raw())->step, static_cast<int>(step + 1));
      } else {
        EXPECT_EQ(std::memcmp(view.raw(), b.at(name).raw(), bytes), 0) << name;
      }
    }
  }
}

TEST_F(Adamw8bitTest, ThreadsDoNotChangeBits) {
  const auto optimizer = make_optimizer("adamw_8bit", {});
  std::vector<float> first_p;
  std::map<std::string, std::vector<uint8_t>> first_states;
  for (const int threads : {1, 2, 3}) {
    const auto ops = make_test_ops(threads);
    const auto state = optimizer->make_state(memory_, kCount);
    std::vector<float> p = random_values(kCount, 1);
    Context run = context(*ops);
    scalars_.step = 0;  // random numbers are of the step
    for (uint32_t step = 0; step < 5; ++step) {
      std::vector<float> g = uneven_gradient(kCount, 20 + step);
      set_step(0.01f, 0.7f);
      state->apply(run, view_of(p), view_of(g), 1.0, 0.1);
    }
    if (first_p.empty()) first_p = p;
    EXPECT_EQ(std::memcmp(p.data(), first_p.data(), kCount * sizeof(float)), 0) << threads;
    for (const auto& [name, view] : states_of(*state)) {
      const auto* bytes = static_cast<const uint8_t*>(view.raw());
      std::vector<uint8_t> copy(bytes, bytes + view.bytes());
      const auto& first = first_states.emplace(name, copy).first->second;
      EXPECT_TRUE(copy == first) << name << " " << threads;
    }
  }
}

// A quadratic whose curvatures span two decades, with noise in its gradients: the loss falls four
// decades, to the floor that the noise sets. That floor is higher by what the codes take away: a
// second moment that changes by less than half a code in a step stays where it is. The method in
// double, written apart from this, ends 4 to 11 % above f32 states, depending on the problem.
TEST_F(Adamw8bitTest, FallsToTheFloorOfTheNoise) {
  constexpr size_t kSize = 8192;
  const std::vector<float> target = random_values(kSize, 5);
  const auto curvature = [](size_t i) { return std::pow(10.0f, -static_cast<float>(i % 64) / 32); };
  const auto loss = [&](const std::vector<float>& p) {
    double sum = 0.0;
    for (size_t i = 0; i < kSize; ++i) {
      const auto distance = static_cast<double>(p[i] - target[i]);
      sum += 0.5 * static_cast<double>(curvature(i)) * distance * distance;
    }
    return sum / kSize;
  };
  const auto trained = [&](const char* name) {
    const auto state = make_optimizer(name, {})->make_state(memory_, kSize);
    std::vector<float> p(kSize);
    const double start = loss(p);
    Context run = context();
    constexpr uint32_t kSteps = 600;
    for (uint32_t step = 0; step < kSteps; ++step) {
      std::vector<float> g = random_values(kSize, 1000 + step, 0.02f);
      for (size_t i = 0; i < kSize; ++i) g[i] += curvature(i) * (p[i] - target[i]);
      set_step(0.02f * static_cast<float>(kSteps - step) / kSteps);
      state->apply(run, view_of(p), view_of(g), 1.0, 0.0);
    }
    const double end = loss(p);
    EXPECT_LT(end, 1e-3 * start) << name;
    return end;
  };
  const double exact = trained("adamw");
  const double coded = trained("adamw_8bit");
  EXPECT_LT(coded, 1.15 * exact);
  EXPECT_GT(coded, 0.95 * exact);
}

TEST_F(Adamw8bitTest, BooksItsStates) {
  const auto optimizer = make_optimizer("adamw_8bit", {});
  const auto booked = [&](int64_t count) {
    const int64_t before = memory_.ledger().current[static_cast<size_t>(Purpose::optimizer)];
    const auto state = optimizer->make_state(memory_, count);
    return memory_.ledger().current[static_cast<size_t>(Purpose::optimizer)] - before;
  };
  const int64_t counter = round_up(sizeof(AdamwFactors), 64);
  // Two codes and two absmax of a block of 256; small tensors as f32.
  EXPECT_EQ(booked(1 << 20), 2 * ((1 << 20) + (1 << 20) / 64) + counter);
  EXPECT_EQ(booked(kCount), 2 * (round_up(kCount, 64) + round_up(79 * 4, 64)) + counter);
  EXPECT_EQ(booked(4096), 2 * (4096 + 64) + counter);
  EXPECT_EQ(booked(4095), 2 * 4096 * 4 + counter);
}

}  // namespace
}  // namespace jackscrew
