// Plans against real runs, to the byte.
#include "train/plan.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

struct PlanCase {
  const char* name;
  const char* model;
  std::vector<std::string> settings;
};

void PrintTo(const PlanCase& plan_case, std::ostream* out) {
  *out << plan_case.name;
}

class PlanTest : public ::testing::TestWithParam<PlanCase> {};

// A step of two micro-batches that are as full as the recipe allows: one of whole rows, every token
// a target, and one of many short sequences.
StepBatch full_step(const Recipe& recipe) {
  const auto example = [](int64_t length, int64_t salt) {
    Example out;
    for (int64_t i = 0; i < length; ++i) {
      out.ids.push_back(static_cast<int32_t>((i * 7 + salt) % 60));
      out.train.push_back(1);
    }
    return out;
  };
  MicroBatch rows, pieces;
  for (int64_t row = 0; row < recipe.micro_batch_size; ++row) {
    rows.append(example(recipe.sequence_len, row));
  }
  const int64_t tokens = recipe.micro_batch_size * recipe.sequence_len;
  for (int64_t at = 0; at < tokens; at += 3)
    pieces.append(example(std::min<int64_t>(3, tokens - at), at));
  return {{rows, pieces}, rows.target_count + pieces.target_count, 2 * tokens, 0};
}

TEST_P(PlanTest, EqualsTheLedgerOfARealRun) {
  const ModelFiles files = open_model(golden_path(GetParam().model).string());
  const Recipe recipe = make_recipe(GetParam().settings);
  if (recipe.product == "bf16" && detect_isa() < IsaLevel::v4_bf16) {
    GTEST_SKIP() << "this CPU has no bf16 products";
  }
  const SessionUse use = training_use(recipe);
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  if (recipe.gradient_checkpointing) {
    EXPECT_EQ(plan.recompute, *recipe.gradient_checkpointing);
  }
  Session session(recipe, files, use, plan);
  const StepBatch step = full_step(recipe);
  for (int64_t i = 0; i < 2; ++i) {
    session.accumulate(step, 1e-3, i);
    EXPECT_TRUE(session.update(0.01).finite);
    EXPECT_GT(session.evaluate(step), 0.0);
    EXPECT_EQ(session.non_finite_parameter(), "");
  }
  const Ledger& ledger = session.memory().ledger();
  EXPECT_EQ(ledger.peak, plan.ledger.peak);
  EXPECT_EQ(ledger.at_peak, plan.ledger.at_peak);
  EXPECT_EQ(session.masters().ledger().peak, plan.masters.peak);
  EXPECT_EQ(ledger.peak_at, plan.ledger.peak_at);
  int64_t sum = 0;
  for (const int64_t bytes : plan.ledger.at_peak) sum += bytes;
  EXPECT_EQ(sum, plan.ledger.peak);
}

TEST_P(PlanTest, KnobsGiveWhatTheySay) {
  const ModelFiles files = open_model(golden_path(GetParam().model).string());
  const Recipe recipe = make_recipe(GetParam().settings);
  if (recipe.product == "bf16" && detect_isa() < IsaLevel::v4_bf16) {
    GTEST_SKIP() << "this CPU has no bf16 products";
  }
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  int64_t last_saving = INT64_MAX;
  for (const Knob& knob : memory_knobs(recipe, files, plan)) {
    std::vector<std::string> settings = GetParam().settings;
    for (const std::string& setting : split(knob.settings, ' ')) settings.push_back(setting);
    const Recipe changed = make_recipe(settings);
    EXPECT_EQ(Session::rehearse(changed, files, training_use(changed)).ledger.peak, knob.peak)
        << knob.settings;
    EXPECT_EQ(knob.saving, plan.ledger.peak - knob.peak);
    EXPECT_GT(knob.saving, 0);
    EXPECT_LE(knob.saving, last_saving);
    last_saving = knob.saving;
    // A budget of exactly that much is kept by some change, and by a byte less not by this one.
    const auto fitting = fitting_knob(recipe, files, plan, knob.peak);
    ASSERT_TRUE(fitting.has_value());
    EXPECT_LE(fitting->peak, knob.peak);
    const auto tighter = fitting_knob(recipe, files, plan, knob.peak - 1);
    if (tighter) {
      EXPECT_LT(tighter->peak, knob.peak);
    }
  }
  EXPECT_FALSE(fitting_knob(recipe, files, plan, 1).has_value());
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, PlanTest,
    ::testing::Values(
        PlanCase{"full", "gqa_tied", {"method=full", "sequence_len=48"}},
        PlanCase{"full_recompute",
                 "gqa_tied",
                 {"method=full", "sequence_len=48", "gradient_checkpointing=true"}},
        PlanCase{"full_rows",
                 "odd",
                 {"method=full", "sequence_len=130", "micro_batch_size=3",
                  "gradient_checkpointing=false"}},
        PlanCase{"full_bf16",
                 "mha_untied",
                 {"method=full", "sequence_len=17", "micro_batch_size=2", "storage=bf16"}},
        PlanCase{"lora", "gqa_untied_rope_linear", {"sequence_len=256", "lora_rank=3"}},
        PlanCase{"lora_some",
                 "gqa_tied_rope_llama3",
                 {"sequence_len=200", "micro_batch_size=4", "lora_target=[q_proj, down_proj]",
                  "lora_dropout=0.1", "gradient_checkpointing=true"}},
        PlanCase{"lora_f16", "odd", {"sequence_len=31", "micro_batch_size=2", "storage=f16"}},
        PlanCase{"full_int8", "odd", {"method=full", "sequence_len=31", "storage=int8"}},
        PlanCase{"lora_int8_row", "mha_untied", {"sequence_len=31", "storage=int8_row"}},
        PlanCase{"full_nf4_double",
                 "gqa_tied",
                 {"method=full", "sequence_len=31", "storage=nf4_double"}},
        PlanCase{"lora_nf4_double", "mha_untied", {"sequence_len=31", "storage=nf4_double"}},
        // Adapters large enough for 8-bit states; the last block of some is short.
        PlanCase{
            "states_8bit", "odd", {"sequence_len=31", "lora_rank=201", "optimizer=adamw_8bit"}},
        PlanCase{"one_thread", "gqa_tied", {"method=full", "sequence_len=300", "threads=1"}},
        PlanCase{"rotary", "gqa_tied", {"method=rotary", "sequence_len=48", "active_params=50%"}},
        PlanCase{"rotary_block",
                 "odd",
                 {"method=rotary", "sequence_len=64", "rotation_groups=block", "moments=keep",
                  "active_params=60%", "static=freeze", "steps_per_rotation=1"}},
        PlanCase{"rotary_matrix",
                 "mha_untied",
                 {"method=rotary", "sequence_len=40", "rotation_groups=matrix", "static=rotate",
                  "active_params=50%", "master_dtype=bf16", "rotation_order=importance",
                  "steps_per_rotation=1"}},
        PlanCase{"bf16_products", "gqa_tied", {"sequence_len=64", "product=bf16"}}),
    [](const auto& test) { return std::string(test.param.name); });

TEST(Plan, TrainingUse) {
  const SessionUse use = training_use(make_recipe({"sequence_len=100", "micro_batch_size=7"}));
  EXPECT_TRUE(use.training);
  EXPECT_EQ(use.tokens, 700);
  EXPECT_EQ(use.max_positions, 100);
}

TEST(Plan, RequireFitNamesTheChange) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const std::vector<std::string> settings = {"sequence_len=512", "micro_batch_size=4"};
  const Recipe free = make_recipe(settings);
  const SessionUse use = training_use(free);
  const SessionPlan plan = Session::rehearse(free, files, use);
  EXPECT_NO_THROW(require_fit(free, files, use, plan));
  const auto check = [&](int64_t budget, const std::string& expected_hint) {
    auto with_budget = settings;
    with_budget.push_back("device_memory=" + std::to_string(budget));
    const Recipe recipe = make_recipe(with_budget);
    const SessionPlan tight = Session::rehearse(recipe, files, use);
    try {
      require_fit(recipe, files, use, tight);
      EXPECT_EQ(expected_hint, "");
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::does_not_fit);
      EXPECT_NE(std::string(error.what()).find(human_bytes(budget)), std::string::npos);
      EXPECT_NE(error.hint().find(expected_hint), std::string::npos) << error.hint();
      EXPECT_NE(expected_hint, "");
    }
  };
  check(plan.ledger.peak, "");
  check(plan.ledger.peak - 1, "");  // gradient_checkpointing=auto sees to it
  const Recipe single = make_recipe({"sequence_len=512", "gradient_checkpointing=true"});
  const int64_t small = Session::rehearse(single, files, training_use(single)).ledger.peak;
  check(small + 1, "micro_batch_size=1 gradient_accumulation_steps=4 needs");
  check(small - 1, "micro_batch_size=1 gradient_accumulation_steps=4 storage=bf16 needs");
  const Recipe narrow =
      make_recipe({"sequence_len=512", "gradient_checkpointing=true", "storage=bf16"});
  const int64_t smaller = Session::rehearse(narrow, files, training_use(narrow)).ledger.peak;
  check(smaller - 1, "storage=bf16 sequence_len=256 needs");
  check(1000, "nothing that can be set makes it fit");
}

TEST(Plan, Disk) {
  const ModelFiles files = open_model(golden_path("mha_untied").string());
  const int64_t parameters = files.config.parameter_count();
  const auto disk = [&](std::vector<std::string> settings) {
    const Recipe recipe = make_recipe(settings);
    return plan_disk(recipe, files.config, Session::rehearse(recipe, files, training_use(recipe)));
  };
  // Parameters and two moments in f32; the ledger rounds every tensor up to 64 bytes.
  const DiskPlan full = disk({"method=full", "save_steps=10", "max_steps=100"});
  EXPECT_NEAR(static_cast<double>(full.checkpoint), 12.0 * static_cast<double>(parameters),
              0.05 * static_cast<double>(full.checkpoint));
  EXPECT_EQ(full.checkpoints, 3);  // save_total_limit 2, and the new one before the oldest goes
  EXPECT_EQ(disk({"save_steps=10", "max_steps=20"}).checkpoints, 2);
  EXPECT_EQ(disk({"save_steps=10", "max_steps=95", "save_total_limit=0"}).checkpoints, 10);
  EXPECT_EQ(disk({"max_steps=20"}).checkpoints, 0);
  EXPECT_LT(disk({"lora_rank=1"}).result, full.result);
}

TEST(Plan, JsonHasTheSettledShape) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe = make_recipe({"sequence_len=32"});
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  const auto json = nlohmann::json::parse(plan_json(recipe, files.config, plan).text());
  EXPECT_EQ(json["device"]["peak"], plan.ledger.peak);
  int64_t sum = 0;
  for (const auto& [purpose, bytes] : json["device"].items()) {
    if (purpose != "peak") sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, plan.ledger.peak);
  EXPECT_TRUE(json["device"].contains("weights"));
  EXPECT_TRUE(json["host"].contains("peak"));
  EXPECT_TRUE(json["disk"].contains("peak"));
  EXPECT_EQ(json["fits"], true);
  EXPECT_EQ(json["peak_at"], plan.ledger.peak_at);
}

// No weight is read and nothing is allocated: 7 billion parameters plan like any others.
TEST(Plan, ShapesOfAnySize) {
  const ModelFiles files = open_model("llama-7b");
  const Recipe recipe = make_recipe({"model=llama-7b", "init=random", "method=full"});
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  EXPECT_GT(plan.ledger.peak, 16 * files.config.parameter_count());
}

}  // namespace
}  // namespace jackscrew
