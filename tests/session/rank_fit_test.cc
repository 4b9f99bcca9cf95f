// The fastest way in which several ranks do a recipe within their memory.
#include "session/rank_fit.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "session/fit.h"
#include "session/knobs.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

TEST(SlowRankFit, FitsRanksToABudget) {
  const ModelFiles files = open_model("llama-1b");
  const auto recipe = [&](const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"model=llama-1b", "init=random", "method=lora",
                                         "sequence_len=256", "micro_batch_size=4"};
    settings.insert(settings.end(), more.begin(), more.end());
    return make_recipe(settings);
  };
  const auto sequences = [](const Recipe& of, const RanksPlan& plan) {
    return plan.layout.lanes * of.gradient_accumulation_steps * of.micro_batch_size;
  };
  const auto fit = [&](int ranks, const std::vector<std::string>& more) {
    const Recipe asked = recipe(more);
    const auto found = fastest_fit(asked, files, ranks);
    if (!found) return found;
    // What is printed is what was found.
    const RanksPlan again = plan_ranks(with_settings(asked, found->settings), files, ranks);
    for (int rank = 0; rank < ranks; ++rank) {
      const int64_t peak = again.ranks[static_cast<size_t>(rank)].ledger.peak;
      EXPECT_EQ(peak, found->plan.ranks[static_cast<size_t>(rank)].ledger.peak);
      EXPECT_LE(peak, *of_rank(found->recipe, rank).device_memory);
    }
    const int64_t lanes =
        asked.data_parallel > 0 ? asked.data_parallel : ranks / asked.pipeline_stages;
    EXPECT_EQ(sequences(found->recipe, found->plan), 4 * lanes);
    return found;
  };
  const auto roomy = fit(4, {"device_memory=64GiB"});
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->settings, "pipeline_stages=1 data_parallel=4 gradient_checkpointing=false");
  // A rank has room for a copy, or only for a half of one.
  const auto copies = fit(
      2, {"device_memory=4GiB", "storage=bf16", "checkpoint_dtype=bf16", "micro_batch_size=1",
          "gradient_accumulation_steps=4", "gradient_checkpointing=true", "optimizer=adamw_8bit"});
  ASSERT_TRUE(copies);
  EXPECT_EQ(copies->plan.layout.stages, 1);
  const auto halves = fit(
      2, {"device_memory=1600MiB", "storage=bf16", "checkpoint_dtype=bf16", "micro_batch_size=1",
          "gradient_accumulation_steps=4", "gradient_checkpointing=true", "optimizer=adamw_8bit"});
  ASSERT_TRUE(halves);
  EXPECT_EQ(halves->plan.layout.stages, 2);
  EXPECT_EQ(halves->plan.layout.lanes, 2);
  // Only stages of different sizes fit.
  const auto uneven = fit(4, {"device_memory=1GiB", "storage=int8"});
  ASSERT_TRUE(uneven);
  ASSERT_EQ(uneven->recipe.stage_split.size(), 4u);
  EXPECT_NE(uneven->settings.find("stage_split="), std::string::npos);
  // Three stages share no power of two of lanes: a step has its micro-batches in other lanes.
  const auto three = fit(3, {"device_memory=1200MiB", "storage=int8"});
  ASSERT_TRUE(three);
  EXPECT_EQ(three->plan.layout.stages, 3);
  EXPECT_EQ(three->recipe.gradient_accumulation_steps * three->plan.layout.lanes *
                three->recipe.micro_batch_size,
            12);
  // So few lanes that only stages can share them.
  const auto two_lanes = fit(3, {"device_memory=64GiB", "data_parallel=2"});
  ASSERT_TRUE(two_lanes);
  EXPECT_EQ(two_lanes->plan.layout.stages, 3);
  // A rank with less memory has fewer blocks.
  const auto smaller = fit(2, {"rank_device_memory=1GiB,4GiB", "storage=int8"});
  ASSERT_TRUE(smaller);
  ASSERT_EQ(smaller->recipe.stage_split.size(), 2u);
  EXPECT_LT(2 * smaller->recipe.stage_split[0], smaller->recipe.stage_split[1]);
  // What the recipe sets stays.
  const auto fixed = fit(2, {"device_memory=64GiB", "pipeline_stages=2"});
  ASSERT_TRUE(fixed);
  EXPECT_EQ(fixed->plan.layout.stages, 2);
  EXPECT_FALSE(fit(2, {"device_memory=10MiB"}));
  // With an update in backward no gradient is left that lanes could add to.
  const Recipe fused = recipe({"device_memory=64GiB", "update=fused", "max_grad_norm_of=weight"});
  const auto stages = fastest_fit(fused, files, 2);
  ASSERT_TRUE(stages);
  EXPECT_EQ(stages->plan.layout.stages, 2);
  EXPECT_EQ(stages->plan.layout.lanes, 1);
  EXPECT_THROW(fit(3, {"device_memory=64GiB", "pipeline_stages=2"}), Error);
}

// The recipe.yaml of a run spells out every option, its one lane and its one stage among them.
TEST(RankFit, ADefaultThatAFileSpellsOutIsNoWish) {
  const ModelFiles files = open_model("llama-9m");
  const auto fit = [&](const std::string& origin) {
    OptionSet options = make_recipe({"model=llama-9m", "init=random", "method=full",
                                     "sequence_len=64", "device_memory=64GiB"})
                            .options;
    options.set("pipeline_stages", "1", origin);
    options.set("data_parallel", "1", origin);
    return fastest_fit(resolve_recipe(std::move(options), method_tables()), files, 2);
  };
  const auto stages = fit("recipe.yaml:3");
  ASSERT_TRUE(stages);
  EXPECT_TRUE(stages->settings.starts_with("pipeline_stages=2 data_parallel=1"))
      << stages->settings;
  EXPECT_THROW(fit(kCommandLine), Error);
}

// What is advised to a rank that does not fit is measured on its own part of the run.
TEST(RankFit, ARankIsAdvisedAsTheRankThatItIs) {
  const ModelFiles files = open_model("llama-9m");
  constexpr int kRanks = 2;
  for (const char* share : {"pipeline_stages=2", "data_parallel=4"}) {
    const Recipe recipe =
        make_recipe({"model=llama-9m", "init=random", "method=full", "sequence_len=128",
                     "micro_batch_size=4", "storage=f32", share});
    const auto plan_with = [&](const std::string& settings) {
      return plan_ranks(with_settings(recipe, settings), files, kRanks);
    };
    const RanksPlan planned = plan_with("");
    for (int rank = 0; rank < kRanks; ++rank) {
      const SessionPlan& plan = planned.ranks[static_cast<size_t>(rank)];
      SessionUse use = training_use(recipe);
      use.place = {planned.layout, rank, planned.stage_split};
      const int64_t budget = plan.ledger.peak - 1;
      const Recipe limited = with_settings(recipe, fmt::format("device_memory={}B", budget));
      try {
        require_fit(limited, files, use, plan);
        FAIL() << share;
      } catch (const Error& error) {
        const std::string hint = error.hint();
        const size_t needs = hint.find(" needs ");
        ASSERT_NE(needs, std::string::npos) << hint;
        const RanksPlan changed = plan_with(hint.substr(0, needs));
        const int64_t peak = changed.ranks[static_cast<size_t>(rank)].ledger.peak;
        EXPECT_LE(peak, budget) << share << ": " << hint;
        EXPECT_EQ(hint.substr(needs), " needs " + human_bytes(peak)) << share << ", rank " << rank;
      }
    }
  }
}

TEST(StageSplit, IsRefusedWithOneThatFits) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());  // 3 blocks
  const auto hint = [&](const std::string& split, int64_t stages) {
    const Recipe recipe =
        make_recipe({"stage_split=" + split, fmt::format("pipeline_stages={}", stages)});
    return hint_of(
        error_of(ErrorKind::usage, [&] { stage_split_of(recipe, files.config, stages); }));
  };
  const std::string such_as = "give the number of blocks of each stage, such as stage_split=";
  EXPECT_EQ(hint("1,1", 2), such_as + "2,1");
  EXPECT_EQ(hint("2,1", 3), such_as + "1,1,1");
  ModelConfig one = files.config;
  one.num_hidden_layers = 1;
  expect_message(ErrorKind::usage, "1 block cannot be shared out over 2 stages",
                 [&] { stage_split_of(make_recipe({}), one, 2); });
}

// Each rank keeps its own on its own machine.
TEST(RankPlan, HasTheMastersOfEveryRank) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());  // 3 blocks
  const Recipe recipe = make_recipe({"method=rotary", "storage=int8", "master=mmap",
                                     "sequence_len=16", "pipeline_stages=2", "stage_split=2,1"});
  const RanksPlan plan = plan_ranks(recipe, files, 2);
  const auto ranks = nlohmann::json::parse(ranks_json(plan));
  ASSERT_EQ(ranks.size(), 2u);
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    EXPECT_EQ(ranks[rank]["disk"]["masters"], plan.ranks[rank].disk.peak) << rank;
    EXPECT_GT(plan.ranks[rank].disk.peak, 0) << rank;
  }
  EXPECT_GT(plan.ranks[0].disk.peak, plan.ranks[1].disk.peak);
}

}  // namespace
}  // namespace jackscrew
