// Adapters of every kind against PEFT, and how recipes choose them.
#include "session/adapter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <span>

#include "base/half.h"
#include "formats/peft.h"
#include "optim/schedule.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

struct GoldenAdapter {
  const char* name;
  const char* base;
};

// An adapter that PEFT trained, laid over its model.
class AdapterGolden : public ::testing::TestWithParam<GoldenAdapter> {
 protected:
  std::unique_ptr<Session> session(std::vector<std::string> more = {}) const {
    more.insert(more.begin(), {"method=lora", "adapter=" + golden_path(GetParam().name).string(),
                               "lora_b_learning_rate_ratio=4", "max_grad_norm=1.0"});
    const Recipe recipe = with_adapter_options(make_recipe(more));
    auto out = make_session(recipe, files_, training_use(batch_.tokens));
    load_adapter(out->stage(), out->ops(), recipe.adapter);
    out->restored();
    return out;
  }

  const Golden golden_{GetParam().name};
  const ModelFiles files_ = open_model(golden_path(GetParam().base).string());
  const StepBatch batch_ = golden_.batch();
};

TEST_P(AdapterGolden, LogitsLossAndGradientsOfPeft) {
  for (const char* recompute : {"false", "true"}) {
    const auto run = session({std::string("gradient_checkpointing=") + recompute});
    std::vector<float> logits;
    for (const MicroBatch& one : separated(batch_.micro_batches[0])) {
      const Tensor part = run->logits(one.ids, one.tokens(), false);
      logits.insert(logits.end(), part.data<float>(), part.data<float>() + part.size());
    }
    EXPECT_LE(relative_error(logits.data(), golden_.values("logits")), 1e-5);
    run->accumulate(batch_, 0.0, 0);
    const auto gradients = states(run->stage(), StateRole::gradient);
    EXPECT_EQ(gradients.size(), read_peft_adapter(golden_path(GetParam().name)).tensors.size());
    for (const auto& [name, view] : gradients) {
      const std::string parameter = name.substr(0, name.rfind(".gradient"));
      const auto expected = golden_.values("grad.base_model.model." + parameter);
      EXPECT_LE(relative_error(view.data<float>(), expected), 1e-4) << parameter;
    }
    const StepResult result = run->update({});
    EXPECT_NEAR(result.loss, static_cast<double>(golden_.values("loss")[0]), 1e-5 * result.loss);
  }
}

// With LoRA+: B learns four times as fast.
TEST_P(AdapterGolden, TenStepsOfPeft) {
  const auto run = session();
  const auto losses = golden_.values("losses");
  const auto norms = golden_.values("grad_norms");
  const auto rates = golden_.values("learning_rates");
  const Schedule schedule{ScheduleKind::cosine, 5e-3, 2, 10};
  for (size_t step = 0; step < losses.size(); ++step) {
    const double rate = schedule.rate(static_cast<int64_t>(step));
    EXPECT_NEAR(rate, static_cast<double>(rates[step]), 1e-9);
    run->accumulate(batch_, rate, static_cast<int64_t>(step));
    const StepResult result = run->update({});
    EXPECT_NEAR(result.loss, static_cast<double>(losses[step]), 1e-5 * result.loss) << step;
    EXPECT_NEAR(result.grad_norm, static_cast<double>(norms[step]), 1e-3 * result.grad_norm)
        << step;
  }
  for (const auto& [name, view] : states(run->stage(), StateRole::parameter)) {
    const auto expected = golden_.values("final.base_model.model." + name);
    EXPECT_LE(relative_error(view.data<float>(), expected), 1e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Peft, AdapterGolden,
                         ::testing::Values(GoldenAdapter{"lora_patterns", "qwen2_yarn"},
                                           GoldenAdapter{"dora", "gqa_tied"},
                                           GoldenAdapter{"dora_biased", "qwen2_yarn"},
                                           GoldenAdapter{"lora_saved_modules", "mha_untied"},
                                           GoldenAdapter{"lora_saved_tied", "gqa_tied"}),
                         [](const auto& test) { return std::string(test.param.name); });

// Adapters that a run of ours begins, over the model gqa_tied: 3 layers.
class AdapterOptionsTest : public ::testing::Test {
 protected:
  std::unique_ptr<Session> session(std::vector<std::string> settings) const {
    settings.insert(settings.begin(), "method=lora");
    return make_session(make_recipe(settings), files_, training_use(batch_.tokens));
  }
  // The modules that have a parameter of that name.
  static std::vector<std::string> modules_of(Session& run, const std::string& part) {
    std::vector<std::string> modules;
    for (const auto& [name, view] : states(run.stage(), StateRole::parameter)) {
      const size_t end = name.find("." + part);
      if (end != std::string::npos) modules.push_back(name.substr(0, end));
    }
    return modules;
  }
  void refused(const std::string& part, std::vector<std::string> settings) const {
    expect_error(ErrorKind::usage, part, [&] { session(settings); });
  }

  const Golden golden_{"gqa_tied"};
  const ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  const StepBatch batch_ = golden_.batch();
};

TEST_F(AdapterOptionsTest, TargetsByExpressionAndByPath) {
  const std::string layer = "model.layers.";
  EXPECT_EQ(modules_of(*session({R"(lora_target=.*\.[02]\.self_attn\.(q|k){1,1}_proj)"}), "lora_A"),
            (std::vector<std::string>{layer + "0.self_attn.k_proj", layer + "0.self_attn.q_proj",
                                      layer + "2.self_attn.k_proj", layer + "2.self_attn.q_proj"}));
  EXPECT_EQ(modules_of(*session({"lora_target=1.mlp.up_proj,layers.0.mlp.down_proj"}), "lora_A"),
            (std::vector<std::string>{layer + "0.mlp.down_proj", layer + "1.mlp.up_proj"}));
  EXPECT_EQ(modules_of(*session({}), "lora_A").size(), 21u);
}

// PEFT matches expressions with more than layers that have weights, such as mlp.act_fn, and names
// with ends of paths.
TEST_F(AdapterOptionsTest, TargetsAreWrittenAsNames) {
  const auto written = [&](const char* target) {
    return session({target})->learner().adapter()["target_modules"];
  };
  EXPECT_EQ(written(R"(lora_target=.*\.mlp\..*)"),
            (nlohmann::json{"down_proj", "gate_proj", "up_proj"}));
  EXPECT_EQ(written(R"(lora_target=.*(\.q_proj|1\.self_attn\.v_proj))"),
            (nlohmann::json{"model.layers.1.self_attn.v_proj", "q_proj"}));
  EXPECT_EQ(written("lora_target=v_proj,0.mlp.up_proj"),
            (nlohmann::json{"0.mlp.up_proj", "v_proj"}));
}

TEST_F(AdapterOptionsTest, TargetsThatDoNotExistAreRefused) {
  refused("lora_target: 3.mlp.up_proj is not a linear layer", {"lora_target=q_proj,3.mlp.up_proj"});
  refused("lora_target: .*_prof is not a linear layer", {"lora_target=.*_prof"});
  refused("lora_target: layers.0.mlp is not a linear layer", {"lora_target=layers.0.mlp"});
  // Of a part of a path, and several in a list, of which a comma makes one.
  for (const char* target : {"(q|v)_proj", "q_proj$", ".*q_proj,.*v_proj"}) {
    refused(
        R"(an expression is for whole paths, as .*\.(q|v)_proj is, and several are joined by |)",
        {std::string("lora_target=") + target});
  }
  // PEFT would look for adapters of these, too.
  refused("model.embed_tokens, which .*s matches, cannot have an adapter", {"lora_target=.*s"});
  refused("model.layers.0.mlp, which .*mlp.* matches, cannot", {"lora_target=.*mlp.*"});
  refused("is not a regular expression", {"lora_target=.*(q_proj"});
}

TEST_F(AdapterOptionsTest, RanksByPattern) {
  const auto run = session({"lora_rank=4", R"(rank_pattern=down_proj=3,layers\.0\..*=2)"});
  for (const auto& [name, view] : states(run->stage(), StateRole::parameter)) {
    const bool first = name.find("layers.0.") != std::string::npos;
    // "down_proj" comes before "layers" in the alphabet.
    const int64_t rank = name.find("down_proj") != std::string::npos ? 3 : first ? 2 : 4;
    const bool is_a = name.find("lora_A") != std::string::npos;
    EXPECT_EQ(view.dim(is_a ? 0 : 1), rank) << name;
  }
  const nlohmann::json adapter = run->learner().adapter();
  EXPECT_EQ(adapter["rank_pattern"], (nlohmann::json{{"down_proj", 3}, {R"(layers\.0\..*)", 2}}));
  EXPECT_EQ(adapter["alpha_pattern"], nlohmann::json::object());
}

TEST_F(AdapterOptionsTest, PatternsThatSayNothingAreRefused) {
  refused("expected PATTERN=NUMBER", {"rank_pattern=q_proj"});
  refused("expected PATTERN=NUMBER", {"alpha_pattern=q_proj=x"});
  refused("rank_pattern has q_proj twice", {"rank_pattern=q_proj=1,q_proj=2"});
  refused("expected a whole number from 1 to 4096", {"rank_pattern=q_proj=1.5"});
  refused("expected a whole number from 1 to 4096", {"rank_pattern=q_proj=0"});
  refused("rank_pattern: k_proj matches no module that has an adapter",
          {"lora_target=q_proj", "rank_pattern=k_proj=2"});
  refused("alpha_pattern: proj matches no module", {"alpha_pattern=proj=2"});
}

// At the first step AdamW takes a step of the learning rate in every element.
TEST_F(AdapterOptionsTest, LoraPlusMultipliesTheRateOfBAlone) {
  const auto after_a_step = [&](const char* ratio) {
    const auto run = session({std::string("lora_b_learning_rate_ratio=") + ratio});
    run->accumulate(batch_, 1e-2, 0);
    run->update({});
    return state_values(run->stage(), StateRole::parameter);
  };
  const auto same = after_a_step("1");
  const auto four = after_a_step("4");
  for (const auto& [name, values] : same) {
    std::vector<float> expected = values;
    if (name.find("lora_B") != std::string::npos) {
      for (float& value : expected) value *= 4.0f;  // B began as 0
    }
    EXPECT_EQ(four.at(name), expected) << name;
  }
}

// modules_to_save: what is trained whole is f32 whatever the blocks are kept in, and nothing else
// beside the adapters learns.
TEST_F(AdapterOptionsTest, SavedModulesLearnWhole) {
  const auto run = session({"storage=nf4", "lora_target=q_proj", "modules_to_save=embed_tokens"});
  const auto before = state_values(run->stage(), StateRole::parameter);
  EXPECT_EQ(before.size(), 3u * 2u + 1u);
  EXPECT_EQ(before.at("model.embed_tokens.weight").size(),
            static_cast<size_t>(files_.config.vocab_size * files_.config.hidden_size));
  const double loss = run->loss_sum(batch_);
  for (int64_t step = 0; step < 3; ++step) {
    run->accumulate(batch_, 1e-2, step);
    run->update({});
  }
  EXPECT_LT(run->loss_sum(batch_), loss);
  EXPECT_NE(state_values(run->stage(), StateRole::parameter).at("model.embed_tokens.weight"),
            before.at("model.embed_tokens.weight"));
  const nlohmann::json adapter = run->learner().adapter();
  EXPECT_EQ(adapter["modules_to_save"], nlohmann::json::array({"embed_tokens"}));
  EXPECT_EQ(adapter["ensure_weight_tying"], true) << "or PEFT would leave the head as it was";
  refused("modules_to_save has lm_head, but this model's is its embedding",
          {"modules_to_save=embed_tokens,lm_head"});
}

// A run computes with what it saves: where the blocks have nothing to round, no bit depends on the
// storage.
TEST_F(AdapterOptionsTest, SavedModulesAreExactInEveryStorage) {
  const auto begun_with = [&](const char* storage) {
    return session({storage, "lora_target=q_proj", "modules_to_save=embed_tokens"});
  };
  const auto exact = begun_with("storage=f32");
  for (const auto& parameter : exact->stage().parameters()) {
    if (!parameter->weight->spec().is_block_matrix()) continue;
    const Tensor values = parameter->weight->as_f32();
    for (float& value : std::span(values.data<float>(), static_cast<size_t>(values.size()))) {
      value = to_float(to_bf16(value));
    }
  }
  const auto run = begun_with("storage=bf16");
  for (const auto& parameter : run->stage().parameters()) {
    EXPECT_STREQ(parameter->weight->format().name(),
                 parameter->weight->spec().is_block_matrix() ? "bf16" : "f32")
        << parameter->weight->name();
  }
  for (int64_t step = 0; step < 3; ++step) {
    for (Session* const one : {exact.get(), run.get()}) one->accumulate(batch_, 1e-2, step);
    EXPECT_EQ(run->update({}).loss, exact->update({}).loss) << step;
  }
  EXPECT_EQ(state_values(run->stage(), StateRole::parameter),
            state_values(exact->stage(), StateRole::parameter));
}

// An adapter whose embedding learned apart from the head, over a model in which they are one.
TEST_F(AdapterOptionsTest, WhatIsUntiedFitsNoTiedModel) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_untied_{}", ::getpid());
  const auto run = session({"lora_target=q_proj", "modules_to_save=embed_tokens"});
  nlohmann::json adapter = run->learner().adapter();
  const auto load = [&] {
    export_adapter([&](const StateVisitor& visitor) { run->visit(visitor); }, run->ops(), adapter,
                   "base", directory);
    const Recipe recipe = with_adapter_options(make_recipe({"adapter=" + directory.string()}));
    EXPECT_EQ(recipe.options.list("modules_to_save"), std::vector<std::string>{"embed_tokens"});
    const auto again = make_session(recipe, files_, training_use(batch_.tokens));
    load_adapter(again->stage(), again->ops(), directory);
  };
  load();
  const SafetensorsFile file(directory / "adapter_model.safetensors");
  EXPECT_NE(file.find("base_model.model.lm_head.weight"), nullptr) << "PEFT reads no other";
  adapter["ensure_weight_tying"] = false;
  expect_message(ErrorKind::model, "its embedding or head learned by itself", load);
  fs::remove_all(directory);
  // Before anything is loaded, and in place of what a learner says of such settings.
  const Recipe of_both =
      with_adapter_options(make_recipe({"adapter=" + golden_path("lora_saved_modules").string()}));
  expect_message(ErrorKind::model, "its embedding or head learned by itself",
                 [&] { Session::rehearse(of_both, files_, training_use(batch_.tokens)); });
}

TEST(AdapterShapes, TellAResizedVocabularyFromAnotherModel) {
  const PeftTensor head{.name = "lm_head.weight", .shape = {5, 3}, .bytes = {}};
  require_shape(head, {5, 3}, "a");
  expect_message(ErrorKind::model, "a: lm_head.weight has shape [5, 3], the model asks for [4, 3]",
                 [&] {
                   require_shape(head, {4, 3}, "a");
                 });
  expect_error(ErrorKind::model, "the vocabulary was resized", [&] {
    require_shape(head, {4, 3}, "a");
  });
  expect_error(ErrorKind::model, "made for another model", [&] {
    require_shape(head, {5, 2}, "a");
  });
}

// What was chosen by expression and pattern is found again by the adapter's own files.
TEST_F(AdapterOptionsTest, SurvivesTheDisk) {
  const fs::path directory =
      fs::temp_directory_path() / fmt::format("jackscrew_adapters_{}", ::getpid());
  const std::string expression = R"(.*\.[02]\.(self_attn|mlp)\.(q|up)_proj)";
  const auto trained =
      session({"lora_rank=4", "lora_target=" + expression, "rank_pattern=0.mlp.up_proj=2",
               "alpha_pattern=q_proj=0.5", "use_rslora=true"});
  for (int64_t step = 0; step < 3; ++step) {
    trained->accumulate(batch_, 1e-2, step);
    trained->update({});
  }
  export_adapter([&](const StateVisitor& visitor) { trained->visit(visitor); }, trained->ops(),
                 trained->learner().adapter(), "base", directory);
  const std::string layer = "model.layers.";  // of three
  EXPECT_EQ(trained->learner().adapter()["target_modules"],
            (nlohmann::json{layer + "0.mlp.up_proj", layer + "0.self_attn.q_proj",
                            layer + "2.mlp.up_proj", layer + "2.self_attn.q_proj"}));
  const std::string adapter = "adapter=" + directory.string();
  // The recipe may say again what it said, and nothing else.
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{adapter}, {adapter, "lora_target=" + expression}}) {
    const Recipe recipe = with_adapter_options(make_recipe(more));
    const auto again = make_session(recipe, files_, training_use(batch_.tokens));
    load_adapter(again->stage(), again->ops(), directory);
    EXPECT_EQ(again->loss_sum(batch_), trained->loss_sum(batch_));
  }
  expect_message(ErrorKind::usage, "rank_pattern is up_proj=2, but the adapter", [&] {
    with_adapter_options(make_recipe({adapter, "rank_pattern=up_proj=2"}));
  });
  expect_message(ErrorKind::usage, "lora_target is q_proj, but the adapter", [&] {
    with_adapter_options(make_recipe({adapter, "lora_target=q_proj"}));
  });
  fs::remove_all(directory);
}

}  // namespace
}  // namespace jackscrew
