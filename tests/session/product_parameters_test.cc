// Parameters of products in checkpoints, and in the hands of every learner.
#include <gtest/gtest.h>
#include <unistd.h>

#include "formats/checkpoint.h"
#include "learners/full.h"
#include "tests/support/golden_rig.h"
#include "tests/support/scaled_product.h"

namespace jackscrew {
namespace {

class ProductParametersTest : public ::testing::Test {
 protected:
  StageRig rig(Learner& learner) const {
    RigChoices choices;
    choices.arithmetic = scaled_arithmetic(*choices.ops, "0.9");
    return {model_of(files_), StageSpec::whole(files_.config), learner, std::move(choices)};
  }
  void train(StageRig& rig, int64_t steps) const {
    for (int64_t step = 0; step < steps; ++step) {
      rig.begin(batch_.targets);
      rig.accumulate(DeviceBatch(batch_.micro_batches[0]));
      rig.apply(1e-3f, {.matrices = 0.1, .vectors = 0.0});
    }
  }
  size_t linears() const {
    return linears_of(files_.config, StageSpec::whole(files_.config)).size();
  }

  const ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  const StepBatch batch_ = Golden("gqa_tied").batch();
};

StateSource states_of(const StageRig& rig) {
  return [&rig](const StateVisitor& visitor) { rig.stage().visit(visitor); };
}

size_t count_scales(const std::map<std::string, Tensor>& states) {
  size_t count = 0;
  for (const auto& [name, view] : states) count += name.ends_with(".scale") ? 1 : 0;
  return count;
}

TEST_F(ProductParametersTest, AreSavedAndResumedToTheBit) {
  const fs::path directory =
      fs::temp_directory_path() / ("jackscrew_own_parameters_" + std::to_string(::getpid()));
  const auto learner = make_full_learner();
  StageRig whole = rig(*learner);
  train(whole, 5);
  StageRig begun = rig(*learner);
  train(begun, 2);
  const fs::path checkpoint =
      write_checkpoint(directory, {2, "", "", "scaled"}, "", states_of(begun), begun.ops());
  StageRig resumed = rig(*learner);
  restore_checkpoint(
      checkpoint, states_of(resumed), [] {}, resumed.ops());
  resumed.restored();
  train(resumed, 3);
  for (const StateRole role : {StateRole::parameter, StateRole::moment, StateRole::counter}) {
    const auto wanted = states(whole.stage(), role);
    ASSERT_FALSE(wanted.empty());
    for (const auto& [name, view] : states(resumed.stage(), role)) {
      EXPECT_TRUE(same_bits(view, wanted.at(name))) << name;
    }
  }
  const auto values = states(resumed.stage(), StateRole::parameter);
  EXPECT_EQ(count_scales(values), linears());
  for (const auto& [name, view] : values) {
    if (name.ends_with(".scale")) {
      EXPECT_NE(view.data<float>()[0], 0.9f) << name << " did not learn";
    }
  }
  fs::remove_all(directory);
}

// Learners treat them as they treat biases and norms: none has to know of products.
TEST_F(ProductParametersTest, EveryLearnerTakesThem) {
  const auto scales_with = [&](const char* settings) {
    const Recipe recipe = make_recipe(settings_of(settings));
    const auto learner = find_learner(recipe.learner).make(recipe.options);
    const StageRig with = rig(*learner);
    return count_scales(states(with.stage(), StateRole::parameter)) +
           count_scales(states(with.stage(), StateRole::master));
  };
  EXPECT_EQ(scales_with("method=full"), linears());
  EXPECT_EQ(scales_with("method=lora"), 0u);
  EXPECT_EQ(scales_with("method=rotary"), linears());
  EXPECT_EQ(scales_with("method=rotary static=rotate"), linears());
  EXPECT_EQ(scales_with("method=rotary static=freeze"), 0u);
  EXPECT_EQ(scales_with("method=galore"), linears());
  EXPECT_EQ(scales_with("method=prompt"), 0u);
}

}  // namespace
}  // namespace jackscrew
