// What a session leaves behind when a step fails.
#include "session/session.h"

#include <cmath>
#include <utility>

#include "tests/support/golden.h"

namespace jackscrew {
namespace {

MicroBatch sequence(int64_t tokens) {
  Example example;
  for (int64_t i = 0; i < tokens; ++i) {
    example.ids.push_back(static_cast<int32_t>(i % 50));
    example.train.push_back(1);
  }
  MicroBatch batch;
  batch.append(example);
  return batch;
}

TEST(Session, AFailedStepLeavesItUsable) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe = make_recipe({"method=full", "sequence_len=16"});
  const auto session = make_session(recipe, files, training_use(16));
  const MicroBatch good = sequence(16);
  const MicroBatch long_one = sequence(17);
  EXPECT_THROW(session->accumulate({{long_one}, long_one.target_count, 17, 0}, 1e-3, 0), Error);
  EXPECT_NO_THROW(session->memory().allocate(Purpose::workspace, 64));
  session->accumulate({{good}, good.target_count, 16, 0}, 1e-3, 0);
  EXPECT_TRUE(session->update({}).finite);
}

TEST(Session, TellsOfItsProgress) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  for (const char* settings : {"storage=keep", "storage=bf16", "init=random"}) {
    const Recipe recipe = make_recipe({settings});
    const SessionUse use = training_use(16);
    const SessionPlan plan = Session::rehearse(recipe, files, use);
    int64_t loaded = 0;
    SessionHooks hooks;
    hooks.loaded = [&](int64_t bytes) { loaded += bytes; };
    Session session(recipe, files, use, plan, hooks);
    int64_t weights = 0;
    for (const auto& parameter : session.stage().parameters()) {
      weights += parameter->weight->storage().bytes.bytes();
    }
    EXPECT_EQ(loaded, weights) << settings;
    EXPECT_EQ(plan.weight_bytes, weights) << settings;

    std::vector<int64_t> evaluated;
    const StepBatch batch{{sequence(16), sequence(5)}, 19, 21, 0};
    session.loss_sum(batch, [&](int64_t tokens) { evaluated.push_back(tokens); });
    EXPECT_EQ(evaluated, (std::vector<int64_t>{16, 5}));
  }
}

TEST(Session, TellsOfEveryPassThroughABlock) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const StepBatch batch{{sequence(16), sequence(5)}, 19, 21, 0};
  for (const char* recomputes : {"false", "true"}) {
    const Recipe recipe =
        make_recipe({"method=full", std::string("gradient_checkpointing=") + recomputes});
    const auto session = make_session(recipe, files, training_use(16));
    int64_t passed = 0;
    session->accumulate(batch, 1e-3, 0, [&](int64_t amount) { passed += amount; });
    session->update({});
    EXPECT_EQ(passed, 2 * 2 * files.config.num_hidden_layers);
    EXPECT_EQ(passed, session->block_passes(batch));
    session->accumulate(batch, 1e-3, 1);
    session->update({});
    EXPECT_EQ(passed, session->block_passes(batch));
  }
}

TEST(Session, NamesAParameterThatIsNotFinite) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  for (const char* settings : {"method=full", "method=lora"}) {
    const auto session = make_session(make_recipe({settings}), files, training_use(16));
    EXPECT_EQ(session->non_finite_parameter(), "");
    for (const auto& [name, view] : states(session->stage(), StateRole::parameter)) {
      float& last = view.data<float>()[view.size() - 1];
      const float kept = std::exchange(last, std::nanf(""));
      EXPECT_EQ(session->non_finite_parameter(), name);
      last = kept;
    }
  }
}

}  // namespace
}  // namespace jackscrew
