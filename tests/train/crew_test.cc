// Several ranks do what one does: the same bits in checkpoints, results and losses.
#include "tests/support/ranks.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/support/paths.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

// What a run leaves that must be equal, by name.
std::map<std::string, std::string> outcome_of(const TinyRun& tiny, const std::string& output) {
  std::map<std::string, std::string> out;
  for (const auto& [name, bytes] : contents(tiny.path(output))) {
    const bool by_time = name.ends_with(".jsonl") || name.ends_with(".html") ||
                         name.find("tfevents") != std::string::npos ||
                         name.ends_with("recipe.yaml") || name.ends_with("checkpoint.json");
    if (!by_time) out[name] = bytes;
  }
  for (const auto& event : tiny.events(output)) {
    const std::string at = fmt::format("{} {}", event["event"].dump(), event["step"].dump());
    if (event["event"] == "step") out[at] = event["loss"].dump() + " " + event["grad_norm"].dump();
    if (event["event"] == "eval") out[at] = event["eval_loss"].dump();
  }
  return out;
}

class CrewTest : public ::testing::TestWithParam<const char*> {};

TEST_P(CrewTest, AnyNumberOfRanksDoesWhatOneDoes) {
  const std::string recipe = GetParam();
  const TinyRun tiny("crew_" + std::to_string(std::hash<std::string>()(recipe) % 100000));
  const auto settings = [&](const std::string& output, const std::string& more) {
    return tiny.settings("output_dir=" + tiny.path(output).string() +
                         " eval_data=" + tiny.eval_data() +
                         " max_steps=5 save_steps=3 eval_steps=3 report_samples=0 " + recipe + " " +
                         more);
  };
  int runs = 0;
  const auto compare = [&](const std::string& arithmetic,
                           const std::vector<std::pair<int, std::string>>& arrangements) {
    const std::string one = fmt::format("one{}", ++runs);
    train_on_ranks(settings(one, arithmetic), 1);
    const auto want = outcome_of(tiny, one);
    for (const auto& [ranks, more] : arrangements) {
      const std::string many = fmt::format("many{}", ++runs);
      train_on_ranks(settings(many, arithmetic + " " + more), ranks);
      const auto got = outcome_of(tiny, many);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [name, bytes] : want) {
        EXPECT_TRUE(got.contains(name)) << name;
        EXPECT_TRUE(got.at(name) == bytes) << name << " with " << ranks << " ranks, " << arithmetic
                                           << " " << more;
      }
    }
  };
  compare("data_parallel=2", {{2, ""}, {2, "pipeline_stages=2"}, {4, "pipeline_stages=2"}});
  compare("data_parallel=4", {{2, ""}, {4, ""}});
  compare("data_parallel=1 gradient_accumulation_steps=3", {{2, "pipeline_stages=2"}});
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, CrewTest,
    ::testing::Values("method=full", "method=full storage=bf16 product=bf16",
                      "method=lora lora_dropout=0.1", "method=lora storage=nf4 product=int8",
                      "method=rotary active_params=60% steps_per_rotation=2 storage=int8",
                      "method=rotary active_params=60% steps_per_rotation=2 storage=int8 "
                      "rotation_order=importance master=mmap",
                      "method=galore projection_update_gap=2 galore_rank=8",
                      "method=qgalore projection_update_gap=3 galore_rank=8 update=after "
                      "max_grad_norm_of=model"));

}  // namespace
}  // namespace jackscrew
