// Several ranks that compute on one GPU do what one does, and take what was planned: what they
// exchange passes through the host's memory.
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "session/rank_plan.h"
#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

class GpuRanksTest : public ::testing::TestWithParam<const char*> {
 protected:
  std::string settings(const std::string& output, const std::string& more) const {
    return tiny_.settings(
        fmt::format("output_dir={} eval_data={} max_steps=3 save_steps=2 eval_steps=3 "
                    "report_samples=1 device=cuda:0 {} {}",
                    tiny_.path(output).string(), tiny_.eval_data(), GetParam(), more));
  }

  const TinyRun tiny_{"gpu_ranks"};
};

TEST_P(GpuRanksTest, DoWhatOneDoesInThePlannedMemory) {
  SKIP_WITHOUT_GPU();
  const std::string lanes = "data_parallel=2 gradient_accumulation_steps=2 ";
  train_on_ranks(settings("one", lanes), 1);
  const auto want = outcome_of(tiny_, "one");
  ASSERT_GT(want.size(), 4u);
  const std::string many = settings("many", lanes + "pipeline_stages=2");
  const Recipe recipe = make_recipe(settings_of(many));
  const RanksPlan plan = plan_ranks(recipe, open_model(recipe.model, "", recipe.tokenizer), 4);
  train_on_ranks(many, 4);
  EXPECT_TRUE(outcome_of(tiny_, "many") == want);
  const auto ranks = tiny_.events("many", "rank");
  ASSERT_EQ(ranks.size(), 4u);
  for (const auto& rank : ranks) {
    const SessionPlan& planned = plan.ranks[rank["rank"].get<size_t>()];
    EXPECT_EQ(rank["device"]["peak"].get<int64_t>(), planned.ledger.peak) << rank;
    EXPECT_EQ(rank["host_memory"]["peak"].get<int64_t>(), planned.host.peak) << rank;
    EXPECT_GT(planned.host.at_peak[static_cast<size_t>(Purpose::communication)], 0);
    EXPECT_EQ(planned.ledger.at_peak[static_cast<size_t>(Purpose::communication)], 0);
  }
}

// The stages of a model may compute on different devices.
TEST(GpuRanks, GpuAndCpuShareAModel) {
  SKIP_WITHOUT_GPU();
  const TinyRun tiny("gpu_and_cpu");
  const auto losses = [&](const std::string& output, const std::string& devices, int ranks) {
    train_on_ranks(tiny.settings(fmt::format("output_dir={} max_steps=5 report_samples=0 {}",
                                             tiny.path(output).string(), devices)),
                   ranks);
    return tiny.losses(output);
  };
  const auto want = losses("cpu", "", 1);
  const auto got = losses("both", "pipeline_stages=2 rank_devices=cuda,cpu", 2);
  ASSERT_EQ(got.size(), want.size());
  for (const auto& [step, loss] : want) EXPECT_NEAR(got.at(step), loss, 1e-4) << step;
  expect_message(ErrorKind::device, "copies of the model would drift apart",
                 [&] { losses("copies", "rank_devices=cpu,cuda", 2); });
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, GpuRanksTest,
    ::testing::Values("method=full", "method=lora lora_dropout=0.1 storage=nf4",
                      "method=rotary active_params=60% steps_per_rotation=2 storage=int8",
                      "method=galore projection_update_gap=2 galore_rank=8"));

}  // namespace
}  // namespace jackscrew
