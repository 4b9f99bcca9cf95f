// A product for each weight, and products that keep parameters beside weights.
#include "products/product.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "kernels/plan/plan_ops.h"
#include "learners/frozen.h"
#include "learners/full.h"
#include "products/int8.h"
#include "tests/model/small_model.h"
#include "tests/support/counting_ops.h"
#include "tests/support/scaled_product.h"
#include "tests/support/stage_rig.h"

namespace jackscrew {
namespace {

std::vector<WeightSpec> all_linears(const ModelConfig& config) {
  return linears_of(config, StageSpec::whole(config));
}

std::string scale_name(const WeightSpec& weight) {
  return weight.name.substr(0, weight.name.rfind(".weight")) + ".scale";
}

RigChoices scaled(const char* scale) {
  RigChoices out;
  out.arithmetic = scaled_arithmetic(*out.ops, scale);
  return out;
}

class WeightProductTest : public ::testing::TestWithParam<bool> {
 protected:
  // A whole model.
  StageRig rig(Learner& learner, RigChoices choices) const {
    return {random_model(config_), StageSpec::whole(config_), learner, std::move(choices)};
  }

  const ModelConfig config_ = small_model(GetParam());
};

// In bytes are the products of exactly those weights that are not excluded, forward and backward.
TEST_P(WeightProductTest, EveryWeightHasItsOwn) {
  const RandomBatch batch(config_, 19, 1);
  FrozenLearner frozen;
  for (const std::vector<std::string>& excluded : {std::vector<std::string>{},
                                                   {"lm_head"},
                                                   {"q_proj", "up_proj"},
                                                   {"layers.1.*"},
                                                   {"layers.*"}}) {
    auto ops = std::make_unique<CountingOps>(make_test_ops());
    CountingOps& counts = *ops;
    const Arithmetic which(make_int8_product(), excluded, all_linears(config_));
    StageRig int8 = rig(frozen, {.ops = std::move(ops),
                                 .arithmetic = std::make_unique<Arithmetic>(
                                     make_int8_product(), excluded, all_linears(config_))});
    int64_t expected = 0;
    for (const WeightSpec& weight : all_linears(config_)) {
      if (&which.product_of(weight) != &which.product()) continue;
      expected += weight.size() * (weight.layer < 0 ? batch.targets() : batch.tokens());
    }
    int8.loss(batch);
    EXPECT_EQ(counts.multiply_adds_int8, expected) << fmt::format("{}", fmt::join(excluded, ","));
  }
}

// Excluding everything is f32, to the bit; on a CPU attention rounds nothing.
TEST_P(WeightProductTest, WhatIsExcludedIsMultipliedInF32) {
  const RandomBatch batch(config_, 19, 1);
  const auto learner = make_full_learner();
  StageRig exact = rig(*learner, {});
  // Excluding all is refused: one weight more, of another model, is left to the product.
  std::vector<WeightSpec> linears = all_linears(config_);
  linears.push_back({.name = "model.other.weight", .rows = 64, .cols = 64, .module = "other"});
  StageRig all_excluded =
      rig(*learner,
          {.arithmetic = std::make_unique<Arithmetic>(
               make_int8_product(), std::vector<std::string>{"layers.*", "lm_head"}, linears)});
  for (StageRig* each : {&exact, &all_excluded}) {
    each->begin(batch.targets());
    each->accumulate(batch);
  }
  EXPECT_EQ(all_excluded.scalars().loss_sum, exact.scalars().loss_sum);
  for (const auto& [name, gradient] : states(exact.stage(), StateRole::gradient)) {
    EXPECT_TRUE(same_bits(states(all_excluded.stage(), StateRole::gradient).at(name), gradient))
        << name;
  }
}

TEST_P(WeightProductTest, ProductParametersAreLearnedButNotOfTheModel) {
  const auto learner = make_full_learner();
  StageRig with = rig(*learner, scaled("1"));
  std::vector<std::string> names;
  for (const WeightSpec& weight : weights_of(config_, StageSpec::whole(config_))) {
    names.push_back(weight.name);
  }
  std::vector<std::string> exported;
  for (const auto& parameter : with.stage().parameters()) {
    exported.push_back(parameter->weight->name());
  }
  EXPECT_EQ(exported, names);
  // The head has one of its own, though it be the embedding.
  const auto parameters = states(with.stage(), StateRole::parameter);
  const auto gradients = states(with.stage(), StateRole::gradient);
  EXPECT_EQ(parameters.size(), names.size() + all_linears(config_).size());
  for (const WeightSpec& weight : all_linears(config_)) {
    EXPECT_TRUE(parameters.contains(scale_name(weight))) << weight.name;
    EXPECT_TRUE(gradients.contains(scale_name(weight) + ".gradient")) << weight.name;
  }
  EXPECT_TRUE(parameters.contains("lm_head.scale"));
}

TEST_P(WeightProductTest, GradientsOfProductParametersAreThoseOfTheLoss) {
  const RandomBatch batch(config_, 19, 1);
  const auto learner = make_full_learner();
  StageRig with = rig(*learner, scaled("0.8"));
  with.begin(1);  // a sum over the targets
  with.accumulate(batch);
  const auto gradients = state_values(with.stage(), StateRole::gradient);
  const auto parameters = states(with.stage(), StateRole::parameter);
  // Of f32: noise of 1e-5 in a loss of 80, and the third derivative.
  constexpr float kStep = 0.01f;
  constexpr double kTolerance = 3e-3;
  const auto slope = [&](const std::string& name, int64_t at) {
    float& value = parameters.at(name).data<float>()[at];
    const float kept = value;
    value = kept + kStep;
    const double above = with.loss(batch);
    value = kept - kStep;
    const double below = with.loss(batch);
    value = kept;
    return (above - below) / (2.0 * static_cast<double>(kStep));
  };
  for (const WeightSpec& weight : all_linears(config_)) {
    const std::string name = scale_name(weight);
    const auto gradient = static_cast<double>(gradients.at(name + ".gradient")[0]);
    EXPECT_NEAR(gradient, slope(name, 0), kTolerance * std::max(1.0, std::abs(gradient))) << name;
    if (!parameters.contains(weight.name)) continue;  // a tied head
    const std::vector<float>& dw = gradients.at(weight.name + ".gradient");
    const auto largest = std::max_element(dw.begin(), dw.end());
    EXPECT_NEAR(static_cast<double>(*largest), slope(weight.name, largest - dw.begin()),
                kTolerance * std::max(1.0, static_cast<double>(*largest)))
        << weight.name;
    // The loss is a function of s W alone: s dL/ds = sum of W dL/dW.
    double sum = 0.0;
    double magnitude = 0.0;
    for (size_t i = 0; i < dw.size(); ++i) {
      const double term = static_cast<double>(dw[i]) *
                          static_cast<double>(parameters.at(weight.name).data<float>()[i]);
      sum += term;
      magnitude += std::abs(term);
    }
    EXPECT_NEAR(0.8 * gradient, sum, 1e-6 * magnitude) << weight.name;
  }
}

// Learns what products keep, and no weight.
class OwnLearner : public Learner {
 public:
  const char* name() const override { return "own"; }
  bool changes(const WeightSpec& weight) const override {
    return weight.kind == WeightKind::product;
  }
  std::unique_ptr<LearnerSlot> make_slot(const LearnerContext& context, Weight& weight) override {
    if (!changes(weight.spec())) return std::make_unique<FrozenSlot>();
    return make_full_slot(context, weight);
  }
};

// The lowest block's q, k and v read what nobody below learns from.
TEST_P(WeightProductTest, ProductParametersLearnWhereNothingElseDoes) {
  const RandomBatch batch(config_, 19, 1);
  const auto full = make_full_learner();
  OwnLearner own;
  StageRig wanted = rig(*full, scaled("0.8"));
  StageRig alone = rig(own, scaled("0.8"));
  for (StageRig* each : {&wanted, &alone}) {
    each->begin(batch.targets());
    each->accumulate(batch);
  }
  const auto gradients = states(alone.stage(), StateRole::gradient);
  EXPECT_EQ(gradients.size(), all_linears(config_).size());
  for (const auto& [name, gradient] : gradients) {
    EXPECT_NE(gradient.data<float>()[0], 0.0f) << name;
    EXPECT_TRUE(same_bits(gradient, states(wanted.stage(), StateRole::gradient).at(name))) << name;
  }
}

TEST_P(WeightProductTest, ProductParametersAreBookedAsPlanned) {
  const RandomBatch batch(config_, 19, 1);
  const auto learner = make_full_learner();
  RigChoices planning = scaled("0.8");
  planning.ops = make_plan_ops(2, test_isa());
  StageRig plan = rig(*learner, std::move(planning));
  StageRig run = rig(*learner, scaled("0.8"));
  StageRig without = rig(*learner, {});
  for (StageRig* each : {&plan, &run, &without}) {
    each->begin(batch.targets());
    each->accumulate(batch);
    each->apply(1e-3f, {});
  }
  EXPECT_EQ(plan.memory().ledger().current, run.memory().ledger().current);
  EXPECT_EQ(plan.memory().ledger().peak, run.memory().ledger().peak);
  EXPECT_EQ(plan.scratch().high_water(), run.scratch().high_water());
  // Weights are booked in units of 64 bytes.
  const auto booked = [](const StageRig& from, Purpose purpose) {
    return from.memory().ledger().current[static_cast<size_t>(purpose)];
  };
  for (const Purpose purpose : {Purpose::weights, Purpose::gradients}) {
    EXPECT_EQ(booked(run, purpose) - booked(without, purpose),
              64 * static_cast<int64_t>(all_linears(config_).size()));
  }
}

INSTANTIATE_TEST_SUITE_P(Heads, WeightProductTest, ::testing::Values(false, true),
                         [](const auto& test) { return test.param ? "tied" : "untied"; });

// f32 that counts how often it is given an input.
class CountingProduct : public ScaledProduct {
 public:
  CountingProduct() : ScaledProduct(1.0) {}
  Operand prepare(Context& context, const Tensor& x) const override {
    ++prepared;
    Operand out{context.scratch.tensor(DType::f32, {x.rows(), x.cols()})};
    context.ops.copy(out.x, x);
    return out;
  }
  mutable int prepared = 0;
};

TEST(LinearInputTest, IsPreparedOnceForEveryProduct) {
  const auto ops = make_test_ops();
  Memory memory("host", make_host_backing(), 0);
  Arena scratch(memory, Purpose::workspace, 1 << 20);
  Context run{*ops, scratch, nullptr};
  std::vector<float> values = {1.0f, 2.0f, 3.0f, 4.0f};
  const CountingProduct first, second;
  LinearInput input(Tensor(values.data(), DType::f32, {2, 2}));
  const Operand a = input.operand(run, first);
  const Operand b = input.operand(run, second);
  EXPECT_EQ(input.operand(run, first).x.raw(), a.x.raw());
  EXPECT_EQ(input.operand(run, second).x.raw(), b.x.raw());
  EXPECT_NE(a.x.raw(), b.x.raw());
  EXPECT_EQ(first.prepared, 1);
  EXPECT_EQ(second.prepared, 1);
}

}  // namespace
}  // namespace jackscrew
