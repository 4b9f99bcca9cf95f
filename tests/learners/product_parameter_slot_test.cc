// What products keep beside weights: its learning rate, no decay, and values that come from data.
#include "learners/product_parameter_slot.h"

#include <gtest/gtest.h>

#include <cmath>

#include "learners/full.h"
#include "quant/format.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

// A gradient of 1, and what data say: values 3 of 10 tokens, 6 of 5.
class Says : public Contributor {
 public:
  void add_dw(const Gradient&, const Tensor& d) const override {
    for (int64_t i = 0; i < d.size(); ++i) d.data<float>()[i] += gradient;
  }
  void add_start(const Gradient&, const Tensor& d) const override {
    for (int64_t i = 0; i < d.cols() && weight > 0.0f; ++i) {
      d.data<float>()[i] += value * weight;
      d.data<float>()[d.cols() + i] += weight;
    }
  }
  float gradient = 1.0f, value = 0.0f, weight = 0.0f;
};

class ProductParameterSlotTest : public ::testing::Test {
 protected:
  std::unique_ptr<LearnerSlot> slot(Weight& weight) {
    LearnerContext context{memory_, memory_, scratch_, &scalars_, *ops_, *optimizer_};
    context.learning_rate = 1e-3;
    for (int64_t i = 0; i < weight.size(); ++i) weight.as_f32().data<float>()[i] = 2.0f;
    return make_full_slot(context, weight, 7.0);
  }
  WeightSpec spec(bool begins_from_data, double learning_rate) const {
    return {"the.step", 1, 2, WeightKind::product, 0, "q_proj", learning_rate, begins_from_data};
  }
  void backward(LearnerSlot& slot, const Weight& weight, const Says& says) {
    slot.backward(Gradient(run_, says, weight), nullptr);
  }
  void apply(LearnerSlot& slot) {
    scalars_.clip_scale = 1.0f;
    scalars_.learning_rate = 1e-3f;
    slot.apply(run_, 0.5);
  }

  std::unique_ptr<Ops> ops_ = make_test_ops(1);
  Memory memory_{"host", make_host_backing(), 0};
  Arena scratch_{memory_, Purpose::workspace, 1 << 20};
  StepScalars scalars_{};
  std::unique_ptr<Optimizer> optimizer_ = make_optimizer("adamw", {});
  Context run_{*ops_, scratch_, &scalars_, true};
};

// AdamW's first step is as large as its rate: that of the run times a ratio, or the weight's own.
TEST_F(ProductParameterSlotTest, HasARateOfItsOwnAndNoDecay) {
  for (const double rate : {0.0, 2e-4}) {
    Weight weight(memory_, spec(false, rate), find_format("f32"));
    const auto learner_slot = slot(weight);
    backward(*learner_slot, weight, {});
    apply(*learner_slot);
    EXPECT_NEAR(weight.as_f32().data<float>()[1], 2.0 - (rate > 0.0 ? rate : 7e-3), 1e-6);
    learner_slot->visit([](const StateRef& state) { EXPECT_NE(state.role, StateRole::window); });
  }
}

TEST_F(ProductParameterSlotTest, TakesTheMeanOfWhatDataSay) {
  Weight weight(memory_, spec(true, 0.0), find_format("f32"));
  const auto learner_slot = slot(weight);
  Says first, second;
  first.gradient = second.gradient = 0.0f;
  first.value = 3.0f;
  first.weight = 10.0f;
  second.value = 6.0f;
  second.weight = 5.0f;
  backward(*learner_slot, weight, first);
  backward(*learner_slot, weight, second);
  apply(*learner_slot);
  EXPECT_EQ(weight.as_f32().data<float>()[0], 4.0f);
  EXPECT_EQ(weight.as_f32().data<float>()[1], 4.0f);
  // Nothing is said, something that is not finite, in a step that is not: the values stay.
  Says nothing, broken = first;
  nothing.gradient = 0.0f;
  broken.value = std::nanf("");
  backward(*learner_slot, weight, nothing);
  apply(*learner_slot);
  backward(*learner_slot, weight, broken);
  apply(*learner_slot);
  EXPECT_EQ(weight.as_f32().data<float>()[0], 4.0f);
  scalars_.finite = 0;
  backward(*learner_slot, weight, first);
  apply(*learner_slot);
  EXPECT_EQ(weight.as_f32().data<float>()[0], 4.0f);
  learner_slot->visit([](const StateRef& state) {
    if (state.role != StateRole::window) return;
    EXPECT_FALSE(state.save);
    for (int64_t i = 0; i < 4; ++i) EXPECT_EQ(state.view.data<float>()[i], 0.0f);
  });
}

}  // namespace
}  // namespace jackscrew
