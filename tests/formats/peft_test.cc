#include "formats/peft.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <numeric>

#include "base/half.h"
#include "tests/formats/support.h"

namespace jackscrew {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

const std::string kModule = "model.layers.0.self_attn.q_proj";

class Peft : public FormatsTest {
 protected:
  fs::path adapter() const { return directory_ / "adapter"; }

  // An adapter of rank 2 on one module of 3 inputs and 4 outputs.
  void write(bool commit = true) const {
    const json config = {{"peft_type", "LORA"}, {"r", 2},
                         {"lora_alpha", 16},    {"lora_dropout", 0.25},
                         {"use_rslora", true},  {"target_modules", {"q_proj", "v_proj"}}};
    PeftWriter writer(adapter(), config, "some/model",
                      {{kModule + ".lora_A.weight", {2, 3}}, {kModule + ".lora_B.weight", {4, 2}}});
    std::vector<float> a(6), b(8);
    std::iota(a.begin(), a.end(), 0.5f);
    std::iota(b.begin(), b.end(), -3.0f);
    writer.write(kModule + ".lora_A.weight", std::span(a).first(2));
    writer.write(kModule + ".lora_A.weight", std::span(a).subspan(2));
    writer.write(kModule + ".lora_B.weight", b);
    if (commit) writer.commit();
  }

  void write_tensors(const std::vector<SafetensorsSpec>& specs) const {
    SafetensorsWriter writer(adapter() / "adapter_model.safetensors", specs);
    for (const SafetensorsSpec& spec : specs) {
      int64_t bytes = safetensors_dtype_size(spec.dtype);
      for (const int64_t extent : spec.shape) bytes *= extent;
      writer.write(spec.name, std::vector<uint8_t>(static_cast<size_t>(bytes), 0x3C));
    }
    writer.close();
  }
  using Items = std::vector<std::string>;
  AdapterOption option(const char* name) const {
    for (const AdapterOption& one : read_peft_adapter(adapter()).options) {
      if (one.name == name) return one;
    }
    ADD_FAILURE() << name;
    return {};
  }
  std::string refused_tensors(const std::vector<SafetensorsSpec>& specs) const {
    write();
    write_tensors(specs);
    return model_error([&] { read_peft_adapter(adapter()); });
  }
  std::string refused(const char* key, const json& value) const {
    write();
    json config = json::parse(slurp(adapter() / "adapter_config.json"));
    config[key] = value;
    put("adapter/adapter_config.json", config.dump());
    return model_error([&] { read_peft_adapter(adapter()); });
  }
};

TEST_F(Peft, RoundTrips) {
  write();
  EXPECT_FALSE(fs::exists(directory_ / "adapter.jackscrew-part"));
  const PeftAdapter read = read_peft_adapter(adapter());
  EXPECT_EQ(read.peft_type, "LORA");
  EXPECT_EQ(read.learner, "lora");
  EXPECT_EQ(read.settings,
            (ordered_json{{"r", 2},
                          {"lora_alpha", 16.0},
                          {"lora_dropout", 0.25},
                          {"use_rslora", true},
                          {"target_modules", ordered_json::array({"q_proj"})}}));  // of the tensors
  EXPECT_EQ(json::parse(slurp(adapter() / "adapter_config.json"))["target_modules"],
            (json{"q_proj", "v_proj"}));
  EXPECT_EQ(read.base_model_name_or_path, "some/model");
  ASSERT_EQ(read.tensors.size(), 2u);
  EXPECT_EQ(read.tensors[0].name, kModule + ".lora_A.weight");
  EXPECT_EQ(read.tensors[0].shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(read.tensors[0].values(), (std::vector<float>{0.5f, 1.5f, 2.5f, 3.5f, 4.5f, 5.5f}));
  EXPECT_EQ(read.tensors[1].name, kModule + ".lora_B.weight");
  EXPECT_EQ(read.tensors[1].values(), (std::vector<float>{-3, -2, -1, 0, 1, 2, 3, 4}));
  const SafetensorsFile file(adapter() / "adapter_model.safetensors");
  EXPECT_NE(file.find("base_model.model." + kModule + ".lora_A.weight"), nullptr);
}

// The writer knows no type of adapter, and tensors need not be matrices.
TEST_F(Peft, WritesWhatALearnerSaysOfItsAdapter) {
  PeftWriter writer(adapter(), {{"peft_type", "OTHER"}, {"size", 3}}, "", {{"some.vector", {3}}});
  writer.write("some.vector", std::vector<float>{1, 2, 3});
  writer.commit();
  const json config = json::parse(slurp(adapter() / "adapter_config.json"));
  EXPECT_EQ(config, (json{{"peft_type", "OTHER"},
                          {"size", 3},
                          {"task_type", "CAUSAL_LM"},
                          {"base_model_name_or_path", nullptr},
                          {"inference_mode", true},
                          {"auto_mapping", nullptr},
                          {"revision", nullptr}}));
  const SafetensorsFile file(adapter() / "adapter_model.safetensors");
  ASSERT_NE(file.find("base_model.model.some.vector"), nullptr);
  EXPECT_EQ(file.find("base_model.model.some.vector")->shape, std::vector<int64_t>{3});
  EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }), "peft_type OTHER"));
}

TEST_F(Peft, SoftPrompts) {
  const auto written = [&](json config, const char* name, std::vector<int64_t> shape) {
    config["peft_type"] = "PROMPT_TUNING";
    PeftWriter writer(adapter(), config, "", {{name, shape}});
    writer.write(name, std::vector<float>(static_cast<size_t>(shape[0] * shape[1]), 0.5f));
    writer.commit();
  };
  written({{"num_virtual_tokens", 3}}, "prompt_embeddings", {3, 2});
  const PeftAdapter read = read_peft_adapter(adapter());
  EXPECT_EQ(read.learner, "prompt");
  EXPECT_EQ(read.settings, (ordered_json{{"num_virtual_tokens", 3}}));
  ASSERT_EQ(read.options.size(), 2u);
  EXPECT_EQ(read.options[0].name, "prompt_tokens");
  EXPECT_EQ(read.options[0].value, "3");
  EXPECT_EQ(read.options[1].name, "prompt_init_text");
  EXPECT_TRUE(read.options[1].accepts_any);
  const SafetensorsFile file(adapter() / "adapter_model.safetensors");
  EXPECT_NE(file.find("prompt_embeddings"), nullptr) << "without the prefix of LoRA's tensors";

  const auto refused = [&](const json& config, const char* name, std::vector<int64_t> shape) {
    written(config, name, std::move(shape));
    return model_error([&] { read_peft_adapter(adapter()); });
  };
  EXPECT_TRUE(mentions(refused({{"num_virtual_tokens", 4}}, "prompt_embeddings", {3, 2}),
                       "shape [3, 2] is not of 4 virtual tokens"));
  EXPECT_TRUE(mentions(refused({{"num_virtual_tokens", 0}}, "prompt_embeddings", {3, 2}),
                       "num_virtual_tokens = 0"));
  EXPECT_TRUE(mentions(refused({{"num_virtual_tokens", 3}}, "prompt", {3, 2}), "tensor prompt"));
  PeftWriter two(adapter(), {{"peft_type", "PROMPT_TUNING"}, {"num_virtual_tokens", 3}}, "",
                 {{"other", {1, 1}}, {"prompt_embeddings", {3, 2}}});
  two.write("other", std::vector<float>(1));
  two.write("prompt_embeddings", std::vector<float>(6));
  two.commit();
  EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }), "tensor other is"));
  EXPECT_TRUE(mentions(refused({{"num_virtual_tokens", 3}, {"num_transformer_submodules", 2}},
                               "prompt_embeddings", {3, 2}),
                       "num_transformer_submodules = 2"));
}

TEST_F(Peft, LeavesNoTraceWithoutCommit) {
  write(false);
  EXPECT_TRUE(fs::is_empty(directory_));
}

TEST_F(Peft, ReadsHalfPrecision) {
  write();
  const std::string module = "base_model.model." + kModule;
  write_tensors(
      {{module + ".lora_A.weight", "F16", {2, 3}}, {module + ".lora_B.weight", "BF16", {4, 2}}});
  const PeftAdapter read = read_peft_adapter(adapter());
  // Every byte is 0x3C.
  EXPECT_EQ(read.tensors[0].values(), std::vector<float>(6, to_float(f16{0x3C3C})));
  EXPECT_EQ(read.tensors[1].values(), std::vector<float>(8, to_float(bf16{0x3C3C})));
}

TEST_F(Peft, HasTheModulesOfItsTensors) {
  write();
  json config = json::parse(slurp(adapter() / "adapter_config.json"));
  config["exclude_modules"] = {"v_proj"};
  for (const json& modules : {json(".*(q|v)_proj"), json({"self_attn.q_proj", "v_proj"}),
                              json({"q_proj"}), json(nullptr)}) {
    config["target_modules"] = modules;
    put("adapter/adapter_config.json", config.dump());
    EXPECT_EQ(read_peft_adapter(adapter()).settings["target_modules"],
              ordered_json::array({"q_proj"}));
  }
}

// Ranks and alphas of their own, and layers without an adapter: what a run must be told to have it.
TEST_F(Peft, HasTheOptionsOfALearner) {
  write();
  EXPECT_EQ(option("lora_rank").value, "2");
  EXPECT_EQ(option("lora_target").items, Items{"q_proj"});
  // By its name q_proj would be that of other layers too.
  json one_layer = json::parse(slurp(adapter() / "adapter_config.json"));
  one_layer["layers_to_transform"] = {0};
  const std::string before = slurp(adapter() / "adapter_config.json");
  put("adapter/adapter_config.json", one_layer.dump());
  EXPECT_EQ(option("lora_target").items, Items{kModule});
  // An expression, a path and an exception may leave later layers out.
  for (const auto& [key, value] :
       {std::pair<const char*, json>{"target_modules", ".*[.][0-3][.].*q_proj"},
        {"target_modules", ".*layers\\..\\.self_attn.q_proj"},
        {"target_modules", {"layers.0.q_proj"}},
        {"exclude_modules", {"layers.1.q_proj"}}}) {
    json partial = json::parse(before);
    partial[key] = value;
    put("adapter/adapter_config.json", partial.dump());
    EXPECT_EQ(option("lora_target").items, Items{kModule}) << partial;
  }
  put("adapter/adapter_config.json", before);
  EXPECT_EQ(option("rank_pattern").items, Items{});
  json config = json::parse(slurp(adapter() / "adapter_config.json"));
  config["rank_pattern"] = {{"v_proj", 3}, {"nowhere", 7}};
  config["alpha_pattern"] = {{"q_proj", 5}, {"v_proj", 0.5}};
  config["target_modules"] = ".*_proj";
  put("adapter/adapter_config.json", config.dump());
  const std::string layers = "base_model.model.model.layers.";
  write_tensors({{layers + "0.q_proj.lora_A.weight", "F32", {2, 3}},
                 {layers + "0.q_proj.lora_B.weight", "F32", {4, 2}},
                 {layers + "2.v_proj.lora_A.weight", "F32", {3, 3}},
                 {layers + "2.v_proj.lora_B.weight", "F32", {4, 3}}});
  EXPECT_EQ(option("lora_target").items, (Items{"model.layers.0.q_proj", "model.layers.2.v_proj"}));
  EXPECT_EQ(option("lora_target").accepted_instead, (Items{"all-linear", "all", ".*_proj"}));
  EXPECT_EQ(option("rank_pattern").items, Items{"v_proj=3"});
  EXPECT_EQ(option("alpha_pattern").items, (Items{"q_proj=5", "v_proj=0.5"}));
}

// PEFT takes the first pattern of the file that matches, and a recipe the first in alphabetical
// order.
TEST_F(Peft, RefusesPatternsWhoseOrderMatters) {
  write();
  const json before = json::parse(slurp(adapter() / "adapter_config.json"));
  const auto use = [&](const char* key, const ordered_json& patterns) {
    ordered_json config(before);
    config[key] = patterns;
    put("adapter/adapter_config.json", config.dump());
  };
  const std::string path = "layers.0.self_attn.q_proj";
  use("alpha_pattern", {{path, 80}, {"q_proj", 2}});
  EXPECT_EQ(option("alpha_pattern").items, (Items{path + "=80", "q_proj=2"}));
  // None of these orders matters: of other modules, or equal.
  use("alpha_pattern", {{"v_proj", 2}, {"q_proj", 3}});
  EXPECT_EQ(option("alpha_pattern").items, Items{"q_proj=3"});
  use("alpha_pattern", {{"q_proj", 2}, {path, 2}});
  EXPECT_EQ(option("alpha_pattern").items, (Items{path + "=2", "q_proj=2"}));
  for (const char* key : {"alpha_pattern", "rank_pattern"}) {
    for (const int number : {1, 3}) {
      use(key, {{"q_proj", number}, {path, 2}});
      const std::string told = fmt::format(
          "adapter_config.json: {}: q_proj and {} both match {}, and are not in alphabetical order",
          key, path, kModule);
      EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }), told)) << key;
    }
  }
}

TEST_F(Peft, NamesWhatItDoesNotSupport) {
  EXPECT_TRUE(mentions(refused("peft_type", "IA3"), "peft_type IA3"));
  EXPECT_TRUE(mentions(refused("bias", "lora_only"), "bias lora_only"));
  EXPECT_TRUE(mentions(refused("use_dora", true), "q_proj.lora_magnitude_vector is missing"));
  EXPECT_TRUE(mentions(refused("fan_in_fan_out", true), "fan_in_fan_out"));
  EXPECT_TRUE(mentions(refused("modules_to_save", {"norm"}), "modules_to_save with norm"));
  EXPECT_TRUE(mentions(refused("modules_to_save", {"lm_head"}),
                       "base_model.model.lm_head.weight is missing"));
  EXPECT_TRUE(mentions(refused("rank_pattern", {{"q_proj", 4}}), "is not of rank 4"));
  EXPECT_TRUE(mentions(refused("rank_pattern", {{"q_proj", 1.5}}), "rank_pattern has 1.5"));
  EXPECT_TRUE(mentions(refused("rank_pattern", {{"q_proj", UINT64_MAX}}),
                       "rank_pattern has 18446744073709551615"));
  EXPECT_TRUE(mentions(refused("rank_pattern", {{"(q", 4}}), "not a regular expression"));
  EXPECT_TRUE(mentions(refused("alpha_pattern", {{"q_proj", "x"}}), "alpha_pattern has \"x\""));
  EXPECT_TRUE(mentions(refused("target_parameters", {"x"}), "target_parameters"));
  EXPECT_TRUE(mentions(refused("init_lora_weights", "pissa_niter_4"), "pissa_niter_4"));
  EXPECT_TRUE(mentions(refused("init_lora_weights", "OLoRA"), "init_lora_weights OLoRA"));
  EXPECT_TRUE(mentions(refused("r", 0), "r = 0"));
  EXPECT_TRUE(mentions(refused("r", nullptr), "\"r\" is missing"));
  EXPECT_TRUE(mentions(refused("lora_dropout", 1.0), "lora_dropout"));
  EXPECT_TRUE(mentions(refused("r", 3), "is not of rank 3"));
  EXPECT_TRUE(
      mentions(refused("alpha_pattern", {{"q{,2}_proj", 4}}), "Python's re reads otherwise"));
  // PEFT makes defaults of {}, and so turns on what they are of.
  for (const char* key :
       {"kasa_config", "velora_config", "arrow_config", "monteclora_config", "use_bdlora"}) {
    EXPECT_TRUE(mentions(refused(key, json::object()), std::string(key) + " = {}"));
  }
}

TEST_F(Peft, HasTheDefaultsOfPeft) {
  write();
  json config = json::parse(slurp(adapter() / "adapter_config.json"));
  const auto read = [&] {
    put("adapter/adapter_config.json", config.dump());
    return read_peft_adapter(adapter()).settings;
  };
  config.erase("lora_alpha");
  EXPECT_EQ(read()["lora_alpha"], 8.0);
  config["rank_pattern"] = {{"q_proj", 2}};
  config.erase("r");
  EXPECT_EQ(read()["r"], 8);
  config.erase("rank_pattern");
  EXPECT_TRUE(mentions(model_error(read), "is not of rank 8"));
  EXPECT_TRUE(mentions(refused("lora_alpha", nullptr), "\"lora_alpha\" is missing"));
}

TEST_F(Peft, ReadsTheLengthsOfDora) {
  write();
  json config = json::parse(slurp(adapter() / "adapter_config.json"));
  config["use_dora"] = true;
  put("adapter/adapter_config.json", config.dump());
  const std::string module = "base_model.model." + kModule;
  const auto tensors = [&](int64_t lengths) {
    write_tensors({{module + ".lora_A.weight", "F32", {2, 3}},
                   {module + ".lora_B.weight", "F32", {4, 2}},
                   {module + ".lora_magnitude_vector", "F32", {lengths}}});
  };
  tensors(4);
  const PeftAdapter read = read_peft_adapter(adapter());
  EXPECT_EQ(read.settings["use_dora"], true);
  EXPECT_EQ(read.tensors[2].shape, std::vector<int64_t>{4});
  tensors(3);
  EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }),
                       "lora_magnitude_vector of shape [3]"));
}

// Beside other weights than those that were rounded the adapter is wrong, so its file says to what.
// PEFT would warn of it in adapter_config.json.
TEST_F(Peft, RemembersWhatRoundingItMakesUpFor) {
  json config = {{"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 4}, {"base_storage", "nf4"}};
  const std::vector<NamedShape> shapes = {{kModule + ".lora_A.weight", {2, 3}},
                                          {kModule + ".lora_B.weight", {4, 2}}};
  const auto export_it = [&] {
    PeftWriter writer(adapter(), config, "some/model", shapes);
    for (const NamedShape& one : shapes) {
      writer.write(one.name, std::vector<float>(static_cast<size_t>(one.shape[0] * one.shape[1])));
    }
    writer.commit();
  };
  export_it();
  EXPECT_FALSE(json::parse(slurp(adapter() / "adapter_config.json")).contains("base_storage"));
  const PeftAdapter read = read_peft_adapter(adapter());
  EXPECT_EQ(read.base_storage, "nf4");
  EXPECT_EQ(read.file->metadata(),
            (SafetensorsMetadata{{"base_storage", "nf4"}, {"format", "pt"}}));
  EXPECT_EQ(option("lora_init").value, "loftq");
  int64_t bytes = 0;
  for (const auto& entry : fs::directory_iterator(adapter())) {
    bytes += static_cast<int64_t>(entry.file_size());
  }
  EXPECT_EQ(bytes, peft_bytes(config, "some/model", shapes));
  for (const char* storage : {"q4_k", "nf5"}) {
    config["base_storage"] = storage;
    export_it();
    EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }),
                         fmt::format("base_storage is {}, which weights cannot", storage)));
  }
  write();
  EXPECT_EQ(read_peft_adapter(adapter()).base_storage, "");
  EXPECT_EQ(option("lora_init").value, "default");
}

// What PEFT's merge_and_unload() refuses, or makes another model of, is not sent to it.
TEST_F(Peft, HintsAtAMergeWherePeftHasOne) {
  const auto hints_at_merge = [&](const char* key, const json& value) {
    const std::string error = refused(key, value);
    EXPECT_TRUE(mentions(hint_of(error), "the blocks' linear layers")) << error;
    return error.find("merge_and_unload") != std::string::npos;
  };
  EXPECT_TRUE(hints_at_merge("bias", "lora_only"));
  EXPECT_TRUE(hints_at_merge("target_parameters", {"x"}));
  EXPECT_TRUE(hints_at_merge("init_lora_weights", "pissa"));
  EXPECT_FALSE(hints_at_merge("init_lora_weights", "pissa_niter_4"));
  EXPECT_FALSE(hints_at_merge("lora_bias", true));
  EXPECT_FALSE(hints_at_merge("layer_replication", json::array({{0, 2}, {1, 3}})));
  EXPECT_FALSE(hints_at_merge("alora_invocation_tokens", {32, 116}));
  EXPECT_FALSE(hints_at_merge("use_qalora", true));
  EXPECT_FALSE(hints_at_merge("arrow_config", json::object()));
}

// PEFT writes a tied head beside its embedding.
TEST_F(Peft, ReadsModulesThatWereSaved) {
  write();
  json config = json::parse(slurp(adapter() / "adapter_config.json"));
  const std::string module = "base_model.model." + kModule;
  const std::string embedding = "base_model.model.model.embed_tokens.weight";
  const auto read = [&](const json& modules, bool tied, float head) {
    config["modules_to_save"] = modules;
    config["ensure_weight_tying"] = tied;
    put("adapter/adapter_config.json", config.dump());
    SafetensorsWriter writer(adapter() / "adapter_model.safetensors",
                             {{module + ".lora_A.weight", "F32", {2, 3}},
                              {module + ".lora_B.weight", "F32", {4, 2}},
                              {embedding, "F32", {2, 1}},
                              {"base_model.model.lm_head.weight", "F32", {2, 1}}});
    const auto write_floats = [&](const std::string& name, std::vector<float> values) {
      writer.write(
          name, {reinterpret_cast<const uint8_t*>(values.data()), values.size() * sizeof(float)});
    };
    write_floats(module + ".lora_A.weight", std::vector<float>(6));
    write_floats(module + ".lora_B.weight", std::vector<float>(8));
    write_floats(embedding, {1, 2});
    write_floats("base_model.model.lm_head.weight", {1, head});
    writer.close();
    return read_peft_adapter(adapter());
  };
  const PeftAdapter both = read({"model.embed_tokens", "lm_head"}, false, 3);
  EXPECT_EQ(both.tensors.size(), 4u);
  EXPECT_TRUE(both.unties_embedding);
  EXPECT_EQ(both.unplaceable_tensor, "");
  EXPECT_EQ(both.settings["modules_to_save"], ordered_json::array({"embed_tokens", "lm_head"}));
  const PeftAdapter one = read({"embed_tokens"}, true, 2);
  EXPECT_EQ(one.tensors.size(), 3u);
  EXPECT_FALSE(one.unties_embedding);
  ASSERT_TRUE(one.repeated_head);
  EXPECT_EQ(one.repeated_head->values(), (std::vector<float>{1, 2}));
  // PEFT names a tied embedding by its path as well.
  const PeftAdapter twice = read({"embed_tokens", "model.embed_tokens"}, true, 2);
  EXPECT_EQ(twice.settings["modules_to_save"], ordered_json::array({"embed_tokens"}));
  // Of an untied model ensure_weight_tying says nothing.
  const PeftAdapter differing = read({"embed_tokens"}, true, 3);
  EXPECT_EQ(differing.settings["modules_to_save"],
            ordered_json::array({"embed_tokens", "lm_head"}));
  EXPECT_TRUE(differing.unties_embedding);
  EXPECT_FALSE(differing.repeated_head);
  // What save_embedding_layers saves besides, PEFT puts in place of the model's own.
  const PeftAdapter besides = read({"embed_tokens"}, false, 2);
  EXPECT_EQ(besides.settings["modules_to_save"], ordered_json::array({"embed_tokens", "lm_head"}));
  EXPECT_TRUE(besides.unties_embedding);
  const PeftAdapter apart = read(nullptr, false, 3);
  EXPECT_EQ(apart.settings["modules_to_save"], ordered_json::array({"embed_tokens", "lm_head"}));
  EXPECT_TRUE(apart.unties_embedding);
  const PeftAdapter alike = read(nullptr, false, 2);
  EXPECT_EQ(alike.settings["modules_to_save"], ordered_json::array({"embed_tokens"}));
  EXPECT_EQ(alike.tensors.size(), 3u);
  EXPECT_FALSE(alike.unties_embedding) << "it fits a model with one matrix for both, too";
}

// Beside a module of modules_to_save, save_embedding_layers has the same again by another name, and
// the base's own, which PEFT does not compute with.
TEST_F(Peft, DropsWhatRepeatsAModuleThatWasSaved) {
  write();
  const std::string head = "base_model.model.lm_head.";
  const auto tensors = [&](const std::string& repeated) {
    write_tensors({{"base_model.model." + kModule + ".lora_A.weight", "F32", {2, 3}},
                   {"base_model.model." + kModule + ".lora_B.weight", "F32", {4, 2}},
                   {head + "weight", "F32", {5, 3}},
                   {head + repeated, "F32", {5, 3}}});
  };
  json config = json::parse(slurp(adapter() / "adapter_config.json"));
  config["modules_to_save"] = {"lm_head"};
  put("adapter/adapter_config.json", config.dump());
  for (const char* repeated : {"modules_to_save.weight", "original_module.weight"}) {
    tensors(repeated);
    const PeftAdapter read = read_peft_adapter(adapter());
    EXPECT_EQ(read.tensors.size(), 3u);
    EXPECT_EQ(read.tensors[0].name, "lm_head.weight");
    EXPECT_EQ(read.settings["modules_to_save"], ordered_json::array({"lm_head"}));
  }
  tensors("base_layer.weight");
  const std::string other = error_of(ErrorKind::model, [&] { read_peft_adapter(adapter()); });
  EXPECT_TRUE(mentions(other, "an adapter of lm_head is not supported"));
  EXPECT_TRUE(mentions(other, "the blocks' linear layers"));
  EXPECT_TRUE(mentions(other, "of such an adapter of an untied model"));
}

TEST_F(Peft, NamesTheTensorThatIsWrong) {
  const std::string module = "base_model.model." + kModule;
  EXPECT_TRUE(mentions(refused_tensors({{module + ".lora_A.weight", "F32", {2, 3}}}),
                       "lora_B.weight is missing"));
  EXPECT_TRUE(mentions(refused_tensors({{module + ".lora_A.weight", "F32", {3, 3}}}), "[3, 3]"));
  EXPECT_TRUE(mentions(refused_tensors({{module + ".lora_B.weight", "F32", {2, 3}}}), "[2, 3]"));
  EXPECT_TRUE(mentions(refused_tensors({{module + ".lora_A.weight", "F32", {2}}}), "[2]"));
  EXPECT_TRUE(mentions(refused_tensors({{module + ".lora_A.weight", "I32", {2, 3}}}), "I32"));
  EXPECT_TRUE(mentions(refused_tensors({{module + ".weight", "F32", {2, 3}}}), ".weight"));
  EXPECT_TRUE(mentions(refused_tensors({{module + ".lora_magnitude_vector", "F32", {4}}}),
                       "q_proj.lora_magnitude_vector is not supported"));
  EXPECT_EQ(hint_of(refused_tensors({{module + ".lora_A.default.weight", "F32", {2, 3}}})),
            "it has the adapter's name in its own: save the adapter by save_pretrained()");
  EXPECT_TRUE(mentions(refused_tensors({{"x.lora_A.weight", "F32", {2, 3}}}), "x.lora_A"));
  EXPECT_TRUE(mentions(refused_tensors({{"base_model.model.lora_A.weight", "F32", {2, 3}}}),
                       "base_model.model.lora_A.weight"));
  EXPECT_TRUE(mentions(refused_tensors({}), "no tensors"));
  EXPECT_TRUE(mentions(refused_tensors({{"base_model.model.lm_head.weight", "F32", {4, 3}}}),
                       "an adapter of nothing but lm_head is not supported"));
  fs::remove(adapter() / "adapter_model.safetensors");
  EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }), "safe_serialization"));
  fs::remove(adapter() / "adapter_config.json");
  EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }), "adapter_config.json"));
  // A run that goes on, or was killed, before its first checkpoint.
  put("adapter/train_log.jsonl", "");
  EXPECT_EQ(hint_of(error_of(ErrorKind::model, [&] { read_peft_adapter(adapter()); })),
            "it has the log of a run, which writes its result when it ends");
  // A whole model, the result of a run, say.
  put("adapter/config.json", "{}");
  put("adapter/checkpoint-2/checkpoint.json", "{}");
  EXPECT_EQ(hint_of(error_of(ErrorKind::model, [&] { read_peft_adapter(adapter()); })),
            "it is a whole model: give it as model=" + adapter().string() + ", without adapter");
  fs::remove_all(adapter());
  EXPECT_TRUE(mentions(model_error([&] { read_peft_adapter(adapter()); }), "does not exist"));
}

}  // namespace
}  // namespace jackscrew
