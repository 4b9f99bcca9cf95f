// Which settings are offered to save memory.
#include "session/knobs.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "session/advice.h"
#include "tests/cli/run_program.h"
#include "tests/formats/gguf_builder.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// Advice of larger subspaces counts what their singular vectors take of the machine's memory.
TEST(Advice, CountsDecompositions) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe =
      make_recipe(settings_of("method=galore subspace=svd galore_rank=8 sequence_len=32"));
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  const std::vector<Advice> all = memory_advice(recipe, files, plan);
  const auto bigger = std::ranges::find(all, "galore_side=big", &Advice::settings);
  ASSERT_NE(bigger, all.end());
  EXPECT_GT(bigger->decomposition, plan.decomposition_bytes);
  const int64_t needed = bigger->device + bigger->host + bigger->decomposition;
  EXPECT_TRUE(bigger->keeps_to({{}, {}, needed}));
  EXPECT_FALSE(bigger->keeps_to({{}, {}, needed - 1}));
  EXPECT_TRUE(bigger->keeps_to({bigger->device, bigger->host, {}}));
}

// Of steps of 100 tokens the cache of sample answers takes more than they do themselves.
TEST(Knobs, LeaveOutSamplesWhoseCacheOutgrowsAStep) {
  const ModelFiles files = open_model("llama-130m");
  const auto recipe_with = [](const std::string& more) {
    return make_recipe(
        settings_of("model=llama-130m init=random tokenizer=bytes method=qlora "
                    "optimizer=adamw_8bit update=fused max_grad_norm=0 threads=1 lora_rank=1 "
                    "gradient_checkpointing=true lora_target=q_proj sequence_len=100 " +
                    more));
  };
  const auto peak_of = [&](const Recipe& recipe) {
    return Session::rehearse(recipe, files, training_use(recipe)).ledger.peak;
  };
  const Recipe recipe = recipe_with("");
  const int64_t enough = peak_of(recipe_with("report_samples=0"));
  EXPECT_GT(peak_of(recipe) - enough, int64_t{3} << 20);
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  const auto advice = fitting_advice(recipe, files, plan, {enough, {}, {}});
  ASSERT_TRUE(advice.has_value());
  EXPECT_EQ(advice->settings, "report_samples=0");
  const auto offers = [&](const std::string& settings) {
    const std::vector<Knob> knobs = knobs_of(recipe_with(settings), files);
    return std::ranges::any_of(knobs, [](const Knob& knob) {
      return !knob.positions.empty() && knob.positions[0].settings == "report_samples=0";
    });
  };
  EXPECT_TRUE(offers("micro_batch_size=8"));  // of which a piece is as short
  EXPECT_FALSE(offers("report_samples=0"));
  EXPECT_FALSE(offers("sequence_len=1024"));
}

TEST(Knobs, DivideMicroBatchesEvenly) {
  const ModelFiles files = open_model("llama-9m");
  const auto pieces = [&](int64_t rows) {
    const Recipe recipe = make_recipe(
        settings_of("model=llama-9m init=random tokenizer=bytes gradient_accumulation_steps=2 "
                    "micro_batch_size=" +
                    std::to_string(rows)));
    std::vector<std::string> out;
    for (const Knob& knob : knobs_of(recipe, files)) {
      for (const Position& position : knob.positions) {
        if (position.settings.starts_with("micro_batch_size=")) out.push_back(position.settings);
      }
    }
    return out;
  };
  using Settings = std::vector<std::string>;
  EXPECT_EQ(pieces(1), Settings{});
  EXPECT_EQ(pieces(7), Settings{"micro_batch_size=1 gradient_accumulation_steps=14"});
  EXPECT_EQ(pieces(18), (Settings{"micro_batch_size=9 gradient_accumulation_steps=4",
                                  "micro_batch_size=3 gradient_accumulation_steps=12",
                                  "micro_batch_size=1 gradient_accumulation_steps=36"}));
}

// So that nobody takes what that saves for the saving of a first rounding.
TEST(Knobs, SayThatWeightsOfAFileWouldBeRoundedAgain) {
  const TemporaryDirectory directory("jackscrew_knobs");
  const auto remark = [&](uint32_t type, size_t bytes, const std::string& more) {
    GgufBuilder out = gguf_llama_shape(32, 64, 2);
    out.tensor("token_embd.weight", 0, {32, 9}, std::string(32 * 9 * 4, '\1'));
    out.tensor("blk.0.ffn_up.weight", type, {32, 64}, std::string(bytes, '\1'));
    const std::string path = directory.file("m.gguf", out.build());
    const ModelFiles files = open_model(path);
    const Recipe recipe = make_recipe(settings_of("tokenizer=bytes method=lora " + more));
    for (const Knob& knob : knobs_of(recipe, files)) {
      for (const Position& position : knob.positions) {
        if (position.settings == "storage=nf4") return position.remark;
      }
    }
    return std::string("none");
  };
  constexpr uint32_t kF16 = 1, kQ4_1 = 3;
  const std::string once = "the blocks' weights in 4 bits";
  EXPECT_EQ(remark(kF16, 32 * 64 * 2, ""), once);
  EXPECT_EQ(remark(kQ4_1, 64 * 20, ""), once + " (rounded a second time)");
  EXPECT_EQ(remark(kQ4_1, 64 * 20, "init=random"), once);
}

// `plan` lists halves and quarters of sequences; where none of them fits, shorter ones still may.
TEST(Knobs, GoDownToShortSequencesWhereNothingElseFits) {
  const ModelFiles files = open_model("llama-130m");
  const auto recipe_with = [](int64_t length) {
    return make_recipe(
        settings_of("model=llama-130m init=random tokenizer=bytes method=qlora "
                    "optimizer=adamw_8bit update=fused max_grad_norm=0 threads=1 lora_rank=1 "
                    "gradient_checkpointing=true lora_target=q_proj report_samples=0 "
                    "sequence_len=" +
                    std::to_string(length)));
  };
  const auto plan_of = [&](int64_t length) {
    const Recipe recipe = recipe_with(length);
    return Session::rehearse(recipe, files, training_use(recipe));
  };
  const Recipe recipe = recipe_with(1024);
  const SessionPlan plan = plan_of(1024);
  for (const int64_t length : {128, 64}) {
    const int64_t enough = plan_of(length).ledger.peak;
    const auto advice = fitting_advice(recipe, files, plan, {enough, {}, {}});
    ASSERT_TRUE(advice.has_value()) << length;
    EXPECT_EQ(advice->settings, fmt::format("sequence_len={}", length));
    EXPECT_EQ(advice->device, enough);
  }
  const int64_t least = plan_of(64).ledger.peak;
  EXPECT_FALSE(fitting_advice(recipe, files, plan, {least - 1, {}, {}}).has_value());
  for (const Advice& listed : memory_advice(recipe, files, plan)) {
    EXPECT_NE(listed.settings, "sequence_len=128");
  }
}

// What becomes of longer records is excess_length_strategy's to say; where they are an error, such
// a run would be refused.
TEST(Knobs, SayWhatShorterSequencesDoToRecords) {
  const ModelFiles files = open_model("llama-9m");
  const auto remark = [&](const std::string& strategy) {
    const Recipe recipe = make_recipe(
        settings_of("model=llama-9m init=random tokenizer=bytes threads=1 sequence_len=512 "
                    "excess_length_strategy=" +
                    strategy));
    const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
    for (const Advice& listed : memory_advice(recipe, files, plan)) {
      if (listed.settings == "sequence_len=256") return listed.remark;
    }
    return std::string("none");
  };
  EXPECT_EQ(remark("truncate"), "longer records are cut");
  EXPECT_EQ(remark("drop"), "longer records are dropped");
  EXPECT_EQ(remark("error"), "none");
}

}  // namespace
}  // namespace jackscrew
