// Plans against real runs, to the byte.
#include "session/plan.h"

#include <nlohmann/json.hpp>

#include "base/text.h"
#include "session/advice.h"
#include "session/fit.h"
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
    EXPECT_TRUE(session.update({.matrices = 0.01, .vectors = 0.01}).finite);
    EXPECT_GT(session.loss_sum(step), 0.0);
    EXPECT_EQ(session.non_finite_parameter(), "");
  }
  const Ledger& ledger = session.memory().ledger();
  EXPECT_EQ(ledger.peak, plan.ledger.peak);
  EXPECT_EQ(ledger.at_peak, plan.ledger.at_peak);
  EXPECT_EQ(session.host_ledger().peak, plan.host.peak);
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
  for (const Advice& advice : memory_advice(recipe, files, plan)) {
    std::vector<std::string> settings = GetParam().settings;
    if (advice.settings.starts_with("method=")) std::erase(settings, "method=full");
    for (const std::string& setting : split(advice.settings, ' ')) settings.push_back(setting);
    const Recipe changed = make_recipe(settings);
    const SessionPlan now = Session::rehearse(changed, files, training_use(changed));
    EXPECT_EQ(now.ledger.peak, advice.device) << advice.settings;
    EXPECT_EQ(now.host.peak, advice.host) << advice.settings;
    EXPECT_EQ(advice.device_saving, plan.ledger.peak - advice.device);
    EXPECT_EQ(advice.host_saving, plan.host.peak - advice.host);
    EXPECT_TRUE(advice.device_saving > 0 || advice.host_saving > 0);
    EXPECT_LE(advice.saving(), last_saving);
    last_saving = advice.saving();
    // A budget of exactly that much is kept by some change, and by a byte less not by this one.
    const auto fitting = fitting_advice(recipe, files, plan, {advice.device, advice.host, {}});
    ASSERT_TRUE(fitting.has_value());
    EXPECT_LE(fitting->device, advice.device);
    EXPECT_LE(fitting->host, advice.host);
    const auto tighter = fitting_advice(recipe, files, plan, {advice.device - 1, {}, {}});
    if (tighter) {
      EXPECT_LT(tighter->device, advice.device);
    }
  }
  EXPECT_FALSE(fitting_advice(recipe, files, plan, {1, {}, {}}).has_value());
}

// What was tried before another method is not asked for where the method alone is enough.
TEST(Plan, AdvisesNothingNeedless) {
  const ModelFiles files = open_model("llama-60m");
  const Recipe recipe =
      make_recipe({"model=llama-60m", "init=random", "method=full", "sequence_len=256",
                   "micro_batch_size=4", "gradient_checkpointing=true"});
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  for (const Advice& advice : memory_advice(recipe, files, plan)) {
    if (advice.settings != "method=rotary") continue;
    const auto fitting = fitting_advice(recipe, files, plan, {advice.device, {}, {}});
    ASSERT_TRUE(fitting.has_value());
    EXPECT_EQ(fitting->settings, "method=rotary");
    return;
  }
  FAIL() << "rotary saves nothing";
}

// As in every run's recipe.yaml. Appended to the command, the advice gives what it says.
TEST(Plan, AdvisesAnotherMethodOverALearnerThatIsGiven) {
  const ModelFiles files = open_model("llama-60m");
  std::vector<std::string> settings = {"model=llama-60m", "init=random", "learner=full"};
  const Recipe recipe = make_recipe(settings);
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  const std::vector<Advice> all = memory_advice(recipe, files, plan);
  const auto rotary = std::ranges::find(all, "method=rotary learner=rotary", &Advice::settings);
  ASSERT_NE(rotary, all.end());
  settings.insert(settings.end(), {"method=rotary", "learner=rotary"});
  const Recipe changed = make_recipe(settings);
  EXPECT_EQ(Session::rehearse(changed, files, training_use(changed)).ledger.peak, rotary->device);
}

// Full training keeps a gradient of every weight, unless weights are updated within backward.
TEST(Plan, AdvisesToUpdateWithinBackward) {
  const ModelFiles files = open_model("llama-60m");
  const auto advised = [&](const std::vector<std::string>& settings, const std::string& change) {
    std::vector<std::string> all = {"model=llama-60m", "init=random", "method=full",
                                    "sequence_len=128"};
    all.insert(all.end(), settings.begin(), settings.end());
    const Recipe recipe = make_recipe(all);
    const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
    const std::vector<Advice> advice = memory_advice(recipe, files, plan);
    return std::ranges::any_of(advice, [&](const Advice& one) { return one.settings == change; });
  };
  EXPECT_TRUE(advised({}, "update=fused max_grad_norm_of=weight"));
  EXPECT_TRUE(advised({"max_grad_norm=0"}, "update=fused"));
  EXPECT_FALSE(advised({"max_grad_norm=0", "gradient_accumulation_steps=2"}, "update=fused"));
}

// Windows of a rotation take more or less, the first among them; none takes more than was reserved.
TEST(Plan, HoldsInEveryWindowOfARotation) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  for (const char* seed : {"1", "2", "3", "4", "5", "6"}) {
    const Recipe recipe = make_recipe({"method=rotary", "sequence_len=16", "active_params=50%",
                                       "steps_per_rotation=1", "seed=" + std::string(seed)});
    const SessionUse use = training_use(recipe);
    const SessionPlan plan = Session::rehearse(recipe, files, use);
    Session session(recipe, files, use, plan);
    const StepBatch step = full_step(recipe);
    for (int64_t i = 0; i < 12; ++i) {
      session.accumulate(step, 1e-3, i);
      session.update({.matrices = 0.01, .vectors = 0.01});
    }
    EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak) << "seed " << seed;
  }
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
        PlanCase{"qwen2", "qwen2_yarn", {"method=full", "sequence_len=33"}},
        PlanCase{"qwen3_rotary",
                 "qwen3",
                 {"method=rotary", "sequence_len=31", "active_params=60%", "static=rotate"}},
        PlanCase{"qwen3_recompute",
                 "qwen3",
                 {"method=full", "sequence_len=48", "gradient_checkpointing=true"}},
        PlanCase{"qwen2_lora", "qwen2_yarn", {"sequence_len=33"}},
        PlanCase{"lora", "gqa_untied_rope_linear", {"sequence_len=256", "lora_rank=3"}},
        PlanCase{"lora_some",
                 "gqa_tied_rope_llama3",
                 {"sequence_len=200", "micro_batch_size=4", "lora_target=[q_proj, down_proj]",
                  "lora_dropout=0.1", "gradient_checkpointing=true"}},
        PlanCase{"dora",
                 "qwen2_yarn",
                 {"sequence_len=90", "use_dora=true", "lora_dropout=0.1", "storage=nf4",
                  "rank_pattern=layers\\.0\\..*=5"}},
        PlanCase{"lora_saved_modules",
                 "mha_untied",
                 {"sequence_len=31", "storage=bf16", "modules_to_save=embed_tokens,lm_head"}},
        PlanCase{"dora_f32", "odd", {"sequence_len=31", "use_dora=true"}},
        PlanCase{"lora_f16", "odd", {"sequence_len=31", "micro_batch_size=2", "storage=f16"}},
        PlanCase{"full_int8", "odd", {"method=full", "sequence_len=31", "storage=int8"}},
        PlanCase{"lora_int8_row", "mha_untied", {"sequence_len=31", "storage=int8_row"}},
        PlanCase{"full_nf4_double",
                 "gqa_tied",
                 {"method=full", "sequence_len=31", "storage=nf4_double"}},
        PlanCase{"lora_nf4_double", "mha_untied", {"sequence_len=31", "storage=nf4_double"}},
        PlanCase{"lora_int4_hadamard",
                 "mha_untied",
                 {"sequence_len=31", "storage=int4_hadamard", "product=w4a8"}},
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
        PlanCase{"prompt", "gqa_tied", {"method=prompt", "sequence_len=48", "prompt_tokens=7"}},
        PlanCase{
            "prompt_fused",
            "mha_untied",
            {"method=prompt", "sequence_len=31", "storage=nf4", "update=fused", "max_grad_norm=0"}},
        PlanCase{"galore", "qwen3", {"method=galore", "sequence_len=48", "max_steps=20"}},
        PlanCase{"galore_bf16",
                 "mha_untied",
                 {"method=galore", "sequence_len=31", "storage=bf16", "galore_side=big",
                  "projection_dtype=bf16", "optimizer=adamw_8bit"}},
        PlanCase{"qgalore",
                 "odd",
                 {"method=qgalore", "sequence_len=31", "gradient_accumulation_steps=2"}},
        PlanCase{"full_fused",
                 "gqa_tied",
                 {"method=full", "sequence_len=48", "update=fused", "max_grad_norm=0",
                  "gradient_accumulation_steps=2"}},
        PlanCase{"bf16_products", "gqa_tied", {"sequence_len=64", "product=bf16"}},
        PlanCase{"int8_products",
                 "odd",
                 {"method=full", "sequence_len=31", "micro_batch_size=3", "product=int8"}},
        PlanCase{"int8_products_of_most",
                 "odd",
                 {"method=lora", "sequence_len=31", "micro_batch_size=3", "product=int8",
                  "product_exclude=k_proj,down_proj"}},
        PlanCase{"bf16_products_of_most",
                 "gqa_tied",
                 {"sequence_len=64", "product=bf16", "product_exclude=lm_head"}},
        PlanCase{"int8_products_of_rows",
                 "gqa_tied",
                 {"sequence_len=64", "product=int8", "storage=int8_row"}},
        PlanCase{"int8_weight_gradients",
                 "odd",
                 {"method=full", "sequence_len=31", "micro_batch_size=3", "product=int8",
                  "int8_dw=int8"}},
        PlanCase{"int4_products",
                 "odd",
                 {"method=full", "sequence_len=31", "micro_batch_size=3", "product=int4"}},
        PlanCase{"int4_of_the_paper",
                 "odd",
                 {"method=full", "sequence_len=31", "micro_batch_size=3", "product=int4",
                  "int4_mode=paper"}},
        PlanCase{"int4_of_the_paper_searching",
                 "mha_untied",
                 {"method=galore", "sequence_len=40", "product=int4", "int4_mode=paper",
                  "int4_block=search", "storage=int8"}},
        PlanCase{"int4_products_of_nf4",
                 "mha_untied",
                 {"method=rotary", "sequence_len=40", "active_params=50%", "product=int4",
                  "storage=nf4"}},
        PlanCase{"w4a8_products",
                 "gqa_tied",
                 {"method=lora", "sequence_len=64", "product=w4a8", "product_exclude=down_proj"}},
        PlanCase{"int8_products_of_nf4",
                 "mha_untied",
                 {"method=rotary", "sequence_len=40", "active_params=50%", "product=int8",
                  "storage=nf4"}}),
    [](const auto& test) { return std::string(test.param.name); });

// The accounting of the literature (weights and both moments in bf16), as tables of GaLore, SCALE
// and others print it in decimal GB: Adam at 60M, 130M, 350M, 1B and 7B parameters.
TEST(Plan, AgreesWithPublishedAccounting) {
  constexpr std::pair<const char*, double> kPublished[] = {{"llama-60m", 0.35},
                                                           {"llama-130m", 0.80},
                                                           {"llama-350m", 2.21},
                                                           {"llama-1b", 8.03},
                                                           {"llama-7b", 40.4}};
  for (const auto& [name, gigabytes] : kPublished) {
    const ModelFiles files = open_model(name);
    const Recipe recipe = make_recipe(
        {std::string("model=") + name, "init=random", "method=full", "sequence_len=16"});
    const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
    const auto booked = [&](Purpose purpose) {
      return static_cast<double>(plan.ledger.at_peak[static_cast<size_t>(purpose)]);
    };
    // f32 here, bf16 there: half.
    const double bytes = (booked(Purpose::weights) + booked(Purpose::optimizer)) / 2.0;
    EXPECT_NEAR(bytes * 1e-9, gigabytes, gigabytes < 10 ? 0.0051 : 0.051) << name;
  }
}

double rotary_bytes(const ModelFiles& files, const std::string& settings) {
  const Recipe recipe = make_recipe(split("method=rotary sequence_len=16 " + settings, ' '));
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  double bytes = 0.0;
  for (const Purpose purpose : {Purpose::weights, Purpose::gradients, Purpose::optimizer}) {
    bytes += static_cast<double>(plan.ledger.at_peak[static_cast<size_t>(purpose)]);
  }
  return bytes;
}

// 2 bytes a linear parameter at a tenth active, with 8-bit states; 2 bytes a parameter in all for a
// model of 7B by default.
TEST(Plan, RotaryTakesWhatItsFormulaSays) {
  const ModelFiles files = open_model("llama-7b");
  const double linears = 32.0 * (4.0 * 4096 * 4096 + 3.0 * 11008 * 4096);
  const double embedding_and_head = 2.0 * 32000 * 4096 * 4;
  const auto linear_bytes = [&](const std::string& settings) {
    return (rotary_bytes(files,
                         "static=freeze active_params=10% rotation_groups=matrix " + settings) -
            embedding_and_head) /
           linears;
  };
  const double waiting = 0.9 * (1.0 + 4.0 / 128);
  EXPECT_NEAR(linear_bytes("optimizer=adamw"), waiting + 0.1 * 16.0, 0.03);
  EXPECT_NEAR(linear_bytes(""), waiting + 0.1 * (8.0 + 2.0 * (1.0 + 4.0 / 256)), 0.03);
  EXPECT_LT(linear_bytes(""), 2.0);
  EXPECT_LT(rotary_bytes(files, "") / static_cast<double>(files.config.parameter_count()), 2.0);
}

TEST(SlowPlan, FitsTheFastestRecipeToABudget) {
  const ModelFiles files = open_model("llama-60m");
  const auto fit = [&](const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"model=llama-60m", "init=random", "sequence_len=256",
                                         "micro_batch_size=8"};
    settings.insert(settings.end(), more.begin(), more.end());
    return fastest_fit(make_recipe(settings), files);
  };
  const auto roomy = fit({"method=full", "device_memory=64GiB"});
  ASSERT_TRUE(roomy);
  EXPECT_EQ(roomy->settings, "gradient_checkpointing=false");
  // Narrower moments cost less than anything else.
  const auto close =
      fit({"method=full", fmt::format("device_memory={}B", roomy->plan.ledger.peak - 1)});
  ASSERT_TRUE(close);
  EXPECT_EQ(close->recipe.optimizer, "adamw_8bit");
  EXPECT_EQ(close->recipe.micro_batch_size, 8);
  const auto tight = fit({"method=full", "optimizer=adamw_8bit", "storage=bf16",
                          fmt::format("device_memory={}B", close->plan.ledger.peak / 4 * 3)});
  ASSERT_TRUE(tight);
  EXPECT_EQ(tight->recipe.micro_batch_size * tight->recipe.gradient_accumulation_steps, 8);
  EXPECT_LT(tight->recipe.micro_batch_size, 8);
  EXPECT_LE(close->plan.ledger.peak, roomy->plan.ledger.peak - 1);
  EXPECT_FALSE(fit({"method=full", "device_memory=10MiB"}));
  const auto rotary =
      fit({"method=rotary", "active_params=100%", "device_memory=500MiB", "host_memory=1MiB"});
  ASSERT_TRUE(rotary);
  EXPECT_EQ(rotary->recipe.options.text("master"), "mmap");
  EXPECT_LE(rotary->plan.ledger.peak, int64_t{500} << 20);
}

TEST(SlowPlan, FitsAnotherStorageOrMethodWhereNothingElseWould) {
  const ModelFiles files = open_model("qwen3-8b");
  const auto fit = [&](const std::vector<std::string>& more) {
    std::vector<std::string> settings = {"model=qwen3-8b", "init=random"};
    settings.insert(settings.end(), more.begin(), more.end());
    return fastest_fit(make_recipe(settings), files);
  };
  const auto eight = fit({"method=lora", "device_memory=16GiB"});
  ASSERT_TRUE(eight);
  EXPECT_EQ(eight->recipe.storage, "int8");
  const auto four = fit({"method=lora", "device_memory=12GiB"});
  ASSERT_TRUE(four);
  EXPECT_EQ(four->recipe.storage, "nf4");
  // Whatever storage was asked for.
  const auto narrower = fit({"method=lora", "device_memory=16GiB", "storage=bf16"});
  ASSERT_TRUE(narrower);
  EXPECT_EQ(narrower->recipe.storage, "int8");
  const auto narrowest = fit({"method=lora", "device_memory=12GiB", "storage=int8_row"});
  ASSERT_TRUE(narrowest);
  EXPECT_EQ(narrowest->recipe.storage, "nf4");
  const auto published = fit({"method=lora", "device_memory=8GiB", "checkpoint_dtype=bf16"});
  ASSERT_TRUE(published);
  EXPECT_LE(published->plan.ledger.peak, int64_t{8} << 30);
  EXPECT_FALSE(fit({"method=lora", "device_memory=8GiB"}));
  const auto rotary = fit({"method=full", "device_memory=24GiB"});
  ASSERT_TRUE(rotary);
  EXPECT_EQ(rotary->recipe.method, "rotary");
  EXPECT_TRUE(rotary->settings.starts_with("method=rotary"));
}

TEST(Plan, CountsACheckpointInItsOwnDtype) {
  const ModelFiles files = open_model("qwen3-8b");
  const auto weights = [&](const std::string& setting) {
    const Recipe recipe = make_recipe({"model=qwen3-8b", "init=random", "method=lora",
                                       "storage=nf4", "sequence_len=64", setting});
    const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
    return plan.ledger.current[static_cast<size_t>(Purpose::weights)];
  };
  const int64_t embedding_and_head = 2 * files.config.vocab_size * files.config.hidden_size;
  EXPECT_EQ(weights("checkpoint_dtype=f32") - weights("checkpoint_dtype=bf16"),
            2 * embedding_and_head);
  EXPECT_THROW(make_recipe({"model=m", "checkpoint_dtype=bf16"}), Error);
}

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
    with_budget.push_back("device_memory=" + std::to_string(budget) + "B");
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
  const auto peak_of = [&](const std::string& storage) {
    const Recipe narrow =
        make_recipe({"sequence_len=512", "gradient_checkpointing=true", "storage=" + storage});
    return Session::rehearse(narrow, files, training_use(narrow)).ledger.peak;
  };
  check(peak_of("bf16") - 1, "storage=int8 needs");
  check(peak_of("int8") - 1, "storage=nf4 needs");
  check(peak_of("nf4") - 1,
        "micro_batch_size=1 gradient_accumulation_steps=4 sequence_len=256 needs");
  check(1000, "no settings that were tried would fit");
}

TEST(Plan, JsonHasTheSettledShape) {
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe = make_recipe({"sequence_len=32"});
  const SessionPlan plan = Session::rehearse(recipe, files, training_use(recipe));
  const DiskPlan disk{.checkpoint = 1000, .checkpoints = 3, .result = 200, .masters = 70};
  const auto json = nlohmann::json::parse(plan_json(recipe, plan, disk).text());
  EXPECT_EQ(json["device"]["peak"], plan.ledger.peak);
  int64_t sum = 0;
  for (const auto& [purpose, bytes] : json["device"].items()) {
    if (purpose != "peak") sum += bytes.get<int64_t>();
  }
  EXPECT_EQ(sum, plan.ledger.peak);
  EXPECT_TRUE(json["device"].contains("weights"));
  EXPECT_TRUE(json["host"].contains("peak"));
  EXPECT_EQ(json["disk"], (nlohmann::json{{"masters", 70},
                                          {"checkpoints", 3000},
                                          {"result", 200},
                                          {"exports", 0},
                                          {"peak", 3270}}));
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
