// Optimizer states in halves and in other coordinates.
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <string>

#include "optim/optimizer.h"
#include "optim/rotate_moments.h"
#include "quant/dynamic_map.h"
#include "tests/support/test_ops.h"
#include "tests/support/values.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

StepScalars step_scalars() {
  StepScalars scalars{};
  scalars.learning_rate = 1e-3f;
  scalars.seed = 5;
  scalars.clip_scale = 1.0f;
  return scalars;
}

class OptimizerHalves : public ::testing::TestWithParam<const char*> {
 protected:
  static constexpr int64_t kRows = 64, kWidth = 96;
  static constexpr size_t kCount = kRows * kWidth;

  std::unique_ptr<OptimizerState> state_after_steps(int steps) {
    auto state = optimizer_->make_state(memory_, kCount);
    std::vector<float> p(kCount);
    for (int step = 0; step < steps; ++step) {
      std::vector<float> g = random_values(kCount, 10 + static_cast<uint32_t>(step));
      scalars_.step = static_cast<uint32_t>(step);
      state->apply(context_, view_of(p), view_of(g), 1.0, 0.0);
    }
    return state;
  }

  // The values of a moment, whatever its coding.
  std::vector<double> moment(const OptimizerState& state, const std::string& part) {
    std::map<std::string, Tensor> states;
    state.visit("w", [&](const StateRef& ref) { states[ref.name] = ref.view; });
    const Tensor values = states.at("w." + part);
    std::vector<double> out;
    for (int64_t i = 0; i < values.size(); ++i) {
      if (values.dtype() == DType::f32) {
        out.push_back(static_cast<double>(values.data<float>()[i]));
        continue;
      }
      const DynamicMap& map = part == "m" ? signed_dynamic_map() : unsigned_dynamic_map();
      const float scale = states.at("w." + part + "_absmax").data<float>()[i / 256];
      out.push_back(static_cast<double>(map.values[values.data<uint8_t>()[i]]) *
                    static_cast<double>(scale));
    }
    return out;
  }

  bool in_codes() const { return std::string(GetParam()) == "adamw_8bit"; }

  // M C, and V (C ∘ C) with a thousandth of the mean of the row, for C = `c`. m in f32 may be off
  // by `error_of_m` of its largest.
  void expect_rotation(std::vector<float> c, double error_of_m) {
    const auto state = state_after_steps(3);
    const std::vector<double> m = moment(*state, "m"), v = moment(*state, "v");
    state->rotate(context_, view_of(c).reshaped({kWidth, kWidth}));
    const std::vector<double> new_m = moment(*state, "m"), new_v = moment(*state, "v");
    double worst_m = 0.0, worst_v = 0.0, largest_m = 0.0, largest_v = 0.0;
    for (int64_t row = 0; row < kRows; ++row) {
      double mean = 0.0;
      for (int64_t k = 0; k < kWidth; ++k)
        mean += v[static_cast<size_t>(row * kWidth + k)] / kWidth;
      for (int64_t col = 0; col < kWidth; ++col) {
        double expected_m = 0.0, expected_v = 1e-3 * mean;
        for (int64_t k = 0; k < kWidth; ++k) {
          const auto at = static_cast<size_t>(row * kWidth + k);
          const auto factor = static_cast<double>(c[static_cast<size_t>(k * kWidth + col)]);
          expected_m += m[at] * factor;
          expected_v += v[at] * factor * factor;
        }
        const auto to = static_cast<size_t>(row * kWidth + col);
        worst_m = worse(worst_m, std::abs(new_m[to] - expected_m));
        worst_v = worse(worst_v, std::abs(new_v[to] - expected_v));
        largest_m = std::max(largest_m, std::abs(expected_m));
        largest_v = std::max(largest_v, expected_v);
      }
    }
    // A code is up to 2.4 % of the largest from the next: rounded to nearest half of that.
    EXPECT_LE(worst_m, (in_codes() ? 0.012 : error_of_m) * largest_m);
    EXPECT_LE(worst_v, (in_codes() ? 0.024 : 1e-6) * largest_v);
  }

  std::unique_ptr<Ops> ops_ = make_test_ops();
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 22};
  StepScalars scalars_ = step_scalars();
  Context context_{*ops_, scratch_, &scalars_, true};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer(GetParam(), {});
};

TEST_P(OptimizerHalves, PiecesAreTheWhole) {
  std::vector<std::vector<float>> results;
  for (const bool in_pieces : {false, true}) {
    auto state = optimizer_->make_state(memory_, kCount);
    std::vector<float> p = random_values(kCount, 1);
    for (uint32_t step = 0; step < 3; ++step) {
      scalars_.step = step;
      std::vector<float> g = random_values(kCount, 2 + step);
      const Tensor gradient = view_of(g);
      if (!in_pieces) {
        state->apply(context_, view_of(p), gradient, 1.0, 0.1);
        continue;
      }
      state->begin(context_, 1.0, 0.1);
      // From the end: order does not matter.
      for (const int64_t first : {int64_t{5120}, int64_t{256}, int64_t{0}}) {
        const int64_t last = first == 0 ? 256 : first == 256 ? 5120 : int64_t{kCount};
        state->update(context_, view_of(p).columns(first, last), gradient.columns(first, last),
                      first);
      }
      for (const float left : g) ASSERT_EQ(left, 0.0f);
    }
    results.push_back(p);
  }
  EXPECT_EQ(results[0], results[1]);
}

TEST_P(OptimizerHalves, MomentsFollowTheBasis) {
  expect_rotation(random_values(kWidth * kWidth, 3, 1.0f / std::sqrt(float{kWidth})), 1e-6);
}

// With a signed permutation of the coordinates nothing is summed: m is moved exactly.
TEST_P(OptimizerHalves, SignsOfTheBasisDoNotMatter) {
  std::vector<float> c(kWidth * kWidth);
  for (int64_t k = 0; k < kWidth; ++k) {
    c[static_cast<size_t>(k * kWidth + (k + 1) % kWidth)] = k % 2 == 0 ? 1.0f : -1.0f;
  }
  expect_rotation(c, 0.0);
}

INSTANTIATE_TEST_SUITE_P(Optimizers, OptimizerHalves, ::testing::Values("adamw", "adamw_8bit"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace jackscrew
