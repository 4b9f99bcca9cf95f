// Adapters of other programs as they are, laid over a model: their numbers, and what is wrong with
// them.
#include <gtest/gtest.h>

#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/peft.h"
#include "session/adapter.h"
#include "tests/cli/run_program.h"
#include "tests/support/batches.h"
#include "tests/support/errors.h"
#include "tests/support/golden.h"
#include "tests/support/untied_source.h"

namespace jackscrew {
namespace {

// A copy of the golden adapter, of rank 4 and alpha 8, over gqa_tied, which has 3 layers.
class LoadedAdapter : public ::testing::Test {
 protected:
  LoadedAdapter() { fs::copy(golden_path("lora"), adapter()); }

  fs::path adapter() const { return directory_.path() / "adapter"; }
  void set(const char* key, const nlohmann::json& value) const {
    const fs::path file = adapter() / "adapter_config.json";
    nlohmann::json config = nlohmann::json::parse(read_text(file));
    config[key] = value;
    write_text_atomic(file, config.dump());
  }
  void change_weights(const std::function<void(std::string&)>& change) const {
    const fs::path file = adapter() / "adapter_model.safetensors";
    std::string bytes = read_text(file);
    change(bytes);
    write_text_atomic(file, bytes);
  }
  std::unique_ptr<Session> session(bool training) const {
    const Recipe recipe = with_adapter_options(make_recipe({"adapter=" + adapter().string()}));
    SessionUse use = training_use(batch_.tokens);
    use.training = training;
    auto out = make_session(recipe, files_, use);
    load_adapter(out->stage(), out->ops(), recipe.adapter);
    out->restored();
    return out;
  }
  double loss() const { return session(false)->loss_sum(batch_); }

  const TemporaryDirectory directory_{"jackscrew_loaded_adapters"};
  const Golden golden_{"lora"};
  const ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  const StepBatch batch_ = golden_.batch();
};

// A run begins with no such numbers.
TEST_F(LoadedAdapter, HasTheNumbersThatItHas) {
  const double before = loss();
  const auto plain = make_session(without_training(make_recipe({})), files_,
                                  {.training = false,
                                   .tokens = batch_.tokens,
                                   .max_positions = batch_.tokens,
                                   .kv_tokens = 0,
                                   .logits_rows = 0});
  const double without = plain->loss_sum(batch_);
  set("lora_dropout", 0.995);
  EXPECT_EQ(loss(), before);
  set("lora_alpha", 0);
  EXPECT_NEAR(loss() / without, 1.0, 1e-6);
  expect_message(ErrorKind::usage, "its adapter would change nothing, and learn nothing",
                 [&] { session(true); });
  set("lora_alpha", -8);
  const double negative = loss();
  EXPECT_GT(std::abs(negative - before), 1e-3);
  set("lora_alpha", 1e7);
  set("alpha_pattern", {{"q_proj|v_proj|down_proj", -8}, {"gate_proj", -8}});
  EXPECT_EQ(loss(), negative);
  set("lora_alpha", 8);
  set("alpha_pattern", {{"q_proj", 2e6}});
  EXPECT_GT(std::abs(loss() - before), 1e-3);
  for (const char* setting :
       {"lora_alpha=-1", "lora_alpha=2e6", "alpha_pattern=q_proj=-1", "alpha_pattern=q_proj=2e6"}) {
    expect_message(ErrorKind::usage, "expected a number from 0 to 1", [&] {
      make_session(make_recipe({"method=lora", setting}), files_, training_use(batch_.tokens));
    });
  }
}

TEST_F(LoadedAdapter, ItsValuesMustBeFinite) {
  change_weights([](std::string& bytes) {
    const float nan = std::numeric_limits<float>::quiet_NaN();
    std::memcpy(bytes.data() + bytes.size() - sizeof nan, &nan, sizeof nan);
  });
  for (const bool training : {false, true}) {
    const std::string error = error_of(ErrorKind::non_finite, [&] { session(training); });
    EXPECT_NE(error.find(adapter().string() + ": model.layers."), std::string::npos) << error;
    EXPECT_NE(error.find("has values that are not finite"), std::string::npos) << error;
  }
}

// The settings of the learner are then the adapter's, of which nobody asked for any.
TEST_F(LoadedAdapter, LayersThatTheModelLacksAreTheAdapters) {
  change_weights([](std::string& bytes) {
    const std::string of_last = "layers.2.";
    for (size_t at = 0; (at = bytes.find(of_last, at)) != std::string::npos;) {
      bytes.replace(at, of_last.size(), "layers.7.");
    }
  });
  const std::string error = error_of(ErrorKind::model, [&] { session(false); });
  EXPECT_EQ(message_of(error), adapter().string() +
                                   ": the model has no place for "
                                   "model.layers.7.mlp.down_proj.lora_A.weight");
  EXPECT_EQ(hint_of(error), "the adapter was made for another model");
}

// The last ones too: the model says how many there are.
TEST_F(LoadedAdapter, LayersThatItLacksAreWarnedOf) {
  const PeftAdapter whole = read_peft_adapter(adapter());
  const auto is_kept = [](const PeftTensor& tensor) {
    return tensor.name.starts_with("model.layers.1.");
  };
  std::vector<NamedShape> kept;
  for (const PeftTensor& tensor : whole.tensors) {
    if (is_kept(tensor)) kept.push_back({tensor.name, tensor.shape});
  }
  PeftWriter writer(adapter(), nlohmann::json::parse(read_text(adapter() / "adapter_config.json")),
                    "", kept);
  for (const PeftTensor& tensor : whole.tensors) {
    if (is_kept(tensor)) writer.write(tensor.name, tensor.values());
  }
  writer.commit();
  const auto run = session(false);
  ::testing::internal::CaptureStderr();
  warn_of_adapter(run->stage(), adapter());
  const std::string said = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(said.find("selects 8 modules without tensors, first model.layers.0."),
            std::string::npos)
      << said;
}

TEST_F(LoadedAdapter, WhatPeftTrainsInPartIsNotTrained) {
  set("init_lora_weights", "mica");
  const Recipe recipe = with_adapter_options(make_recipe({"adapter=" + adapter().string()}));
  expect_message(ErrorKind::model, "init_lora_weights mica: PEFT trains only a part",
                 [&] { require_trainable(recipe); });
  EXPECT_GT(loss(), 0.0);
  set("init_lora_weights", true);
  require_trainable(recipe);
}

// PEFT puts it in place of the model's own, as the head that the adapter was made with.
TEST(LoadedHead, ThatRepeatsTheEmbeddingCountsOverAnUntiedModel) {
  const Golden golden("lora_saved_tied");
  const StepBatch batch = golden.batch();
  const ModelFiles files = untied(open_model(golden_path("gqa_tied").string()));
  const Recipe recipe =
      with_adapter_options(make_recipe({"adapter=" + golden_path("lora_saved_tied").string()}));
  const auto run = make_session(recipe, files, training_use(batch.tokens));
  load_adapter(run->stage(), run->ops(), recipe.adapter);
  run->restored();
  std::vector<float> logits;
  for (const MicroBatch& one : separated(batch.micro_batches[0])) {
    const Tensor part = run->logits(one.ids, one.tokens(), false);
    logits.insert(logits.end(), part.data<float>(), part.data<float>() + part.size());
  }
  EXPECT_LE(relative_error(logits.data(), golden.values("logits")), 1e-5);
  const nlohmann::json written = run->learner().adapter();
  EXPECT_EQ(written["modules_to_save"], nlohmann::json::array({"embed_tokens", "lm_head"}));
  EXPECT_FALSE(written.contains("ensure_weight_tying"));
}

TEST_F(LoadedAdapter, OfNoPlaceSaysWhy) {
  const fs::path directory = directory_.path() / "other";
  const auto hint_for = [&](const std::string& module) {
    PeftWriter writer(directory, {{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 1}}, "",
                      {{module + ".lora_A.weight", {1, 2}}, {module + ".lora_B.weight", {3, 1}}});
    writer.write(module + ".lora_A.weight", std::vector<float>(2));
    writer.write(module + ".lora_B.weight", std::vector<float>(3));
    writer.commit();
    return hint_of(error_of(ErrorKind::model, [&] {
      with_adapter_options(make_recipe({"adapter=" + directory.string()}));
    }));
  };
  EXPECT_EQ(hint_for("layers.0.mlp.up_proj"),
            "it was made for a model without its head, such as AutoModel's: make it for "
            "AutoModelForCausalLM's");
  EXPECT_EQ(hint_for("_orig_mod.model.layers.0.mlp.up_proj"),
            "it was saved of a model under torch.compile: save it of the model itself");
  EXPECT_EQ(hint_for("language_model.model.layers.0.mlp.up_proj"),
            "its names have a further prefix, language_model.: rename its tensors, "
            "base_model.model.language_model.* to base_model.model.*");
  EXPECT_EQ(hint_for("base_model.model.model.layers.0.mlp.up_proj"),
            "its names have a further prefix, base_model.model.: rename its tensors, "
            "base_model.model.base_model.model.* to base_model.model.*");
  EXPECT_EQ(hint_for("lm_head"),
            "adapters of the matrices of blocks are supported, those of lm_head and embed_tokens "
            "are not; PEFT's merge_and_unload() makes a model of such an adapter of an untied "
            "model");
}

}  // namespace
}  // namespace jackscrew
