// Adapters whose adapter_config.json and tensors do not say the same, and places where there is no
// adapter.
#include "formats/peft_modules.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "formats/peft.h"
#include "tests/formats/support.h"

namespace jackscrew {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

std::string left_out_by(const ordered_json& settings, const std::string& path) {
  const char* setting = PeftModules(settings).left_out_by(path);
  return setting == nullptr ? "" : setting;
}

// As check_target_module_exists() of peft.tuners.tuners_utils.
TEST(PeftModulesTest, AreThoseThatPeftGivesAnAdapter) {
  const std::string q = "model.layers.1.self_attn.q_proj", up = "model.layers.12.mlp.up_proj";
  EXPECT_EQ(left_out_by({{"target_modules", {"q_proj", "12.mlp.up_proj"}}}, q), "");
  EXPECT_EQ(left_out_by({{"target_modules", {"q_proj", "12.mlp.up_proj"}}}, up), "");
  EXPECT_EQ(left_out_by({{"target_modules", {"q_proj", "2.mlp.up_proj"}}}, up), "target_modules");
  EXPECT_EQ(left_out_by({{"target_modules", R"(.*\.[0-9]\..*_proj)"}}, q), "");
  EXPECT_EQ(left_out_by({{"target_modules", R"(.*\.[0-9]\..*_proj)"}}, up), "target_modules");
  EXPECT_EQ(left_out_by({{"exclude_modules", {"q_proj"}}}, q), "exclude_modules");
  EXPECT_EQ(left_out_by({{"exclude_modules", ".*mlp.*"}}, up), "exclude_modules");
  EXPECT_EQ(left_out_by({{"exclude_modules", ".*mlp.*"}}, q), "");
  EXPECT_EQ(left_out_by({{"layers_to_transform", {0, 12}}}, q), "layers_to_transform");
  EXPECT_EQ(left_out_by({{"layers_to_transform", {0, 12}}}, up), "");
  EXPECT_EQ(left_out_by({{"layers_to_transform", 1}}, q), "");
  EXPECT_EQ(left_out_by({{"layers_to_transform", 1}, {"layers_pattern", "layers"}}, up),
            "layers_to_transform");
  // What is not known, or not read here, leaves nothing out.
  for (const ordered_json& settings :
       {ordered_json::object(), ordered_json{{"target_modules", nullptr}},
        ordered_json{{"target_modules", "all-linear"}},
        ordered_json{{"target_modules", "q{,2}(_proj"}}, ordered_json{{"target_modules", {1}}},
        ordered_json{{"layers_to_transform", "x"}},
        ordered_json{{"layers_to_transform", 1}, {"layers_pattern", {"h"}}}}) {
    EXPECT_EQ(left_out_by(settings, up), "") << settings;
  }
}

class PeftPlaces : public FormatsTest {
 protected:
  // An adapter of q_proj in some layers of a model with three inputs.
  void write(const std::string& name, json more = json::object(),
             const std::vector<int>& layers = {0, 1}) const {
    json config = {{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 1}};
    config.update(more);
    std::vector<NamedShape> shapes;
    for (const int layer : layers) {
      const std::string module = fmt::format("model.layers.{}.self_attn.q_proj", layer);
      shapes.push_back({module + ".lora_A.weight", {1, 3}});
      shapes.push_back({module + ".lora_B.weight", {3, 1}});
    }
    PeftWriter writer(directory_ / name, config, "", shapes);
    for (const NamedShape& one : shapes) writer.write(one.name, std::vector<float>(3, 0.5f));
    writer.commit();
  }
  std::string refused(const std::string& name) const {
    return model_error([&] { read_peft_adapter(directory_ / name); });
  }
};

TEST_F(PeftPlaces, TensorsThatPeftWouldDropAreNamed) {
  write("a", {{"target_modules", {"q_proj"}}, {"layers_to_transform", {0}}});
  EXPECT_EQ(read_peft_adapter(directory_ / "a").contradiction(2),
            (directory_ / "a/adapter_config.json").string() +
                ": layers_to_transform leaves out model.layers.1.self_attn.q_proj, which has "
                "tensors: they count here, while PEFT drops them");
  // Unsloth writes such expressions.
  write("b", {{"target_modules",
               R"((?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|q_proj).*?)|)"
               R"((?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|mlp)\.(?:(?:k_proj|q_proj))))"}});
  const PeftAdapter unsloth = read_peft_adapter(directory_ / "b");
  EXPECT_EQ(unsloth.contradiction(2), "");
  EXPECT_EQ(unsloth.trains_in_part, "");
  // A recipe may choose the modules by any expression that matches them all.
  const OptionSet recipe({});
  for (const AdapterOption& option : unsloth.options) {
    if (option.name != "lora_target") continue;
    EXPECT_TRUE(option.accepts(".*q_proj", recipe));
    EXPECT_FALSE(option.accepts(R"(.*\.0\..*q_proj)", recipe));
    EXPECT_FALSE(option.accepts("q_proj", recipe));
    EXPECT_FALSE(option.accepts("(q", recipe));
  }
  write("c", {{"init_lora_weights", "mica"}});
  EXPECT_EQ(read_peft_adapter(directory_ / "c").trains_in_part, "init_lora_weights mica");
}

TEST_F(PeftPlaces, ModulesThatLackTensorsAreNamed) {
  const auto warning = [&](const json& settings) {
    json config = {{"peft_type", "LORA"}, {"r", 1}, {"lora_alpha", 1}};
    config.update(settings);
    std::vector<NamedShape> shapes;
    for (const char* module : {"model.layers.0.self_attn.q_proj", "model.layers.0.self_attn.v_proj",
                               "model.layers.1.self_attn.v_proj"}) {
      shapes.push_back({std::string(module) + ".lora_A.weight", {1, 3}});
      shapes.push_back({std::string(module) + ".lora_B.weight", {3, 1}});
    }
    PeftWriter writer(directory_ / "a", config, "", shapes);
    for (const NamedShape& one : shapes) writer.write(one.name, std::vector<float>(3, 0.5f));
    writer.commit();
    return read_peft_adapter(directory_ / "a").contradiction(2);
  };
  EXPECT_EQ(warning({{"target_modules", {"q_proj", "v_proj"}}}),
            (directory_ / "a/adapter_config.json").string() +
                ": target_modules selects 1 module without tensors, first "
                "model.layers.1.self_attn.q_proj: nothing is added there, and the file may be "
                "incomplete");
  // No such module has one, or what is chosen is not clear.
  for (const json& settings :
       {json{{"target_modules", {"0.self_attn.q_proj", "v_proj"}}},
        json{{"target_modules", {"q_proj", "v_proj"}}, {"exclude_modules", {"1.self_attn.q_proj"}}},
        json{{"target_modules", {"q_proj", "v_proj"}}, {"exclude_modules", R"(.*\.1\..*q_proj)"}},
        json{{"target_modules", ".*(q|v)_proj"}}}) {
    EXPECT_EQ(warning(settings), "") << settings;
  }
}

// As after the loss of a file of a model's layers.
TEST_F(PeftPlaces, LayersThatLackTensorsAreNamed) {
  const auto warning = [&](const json& settings, int64_t layers) {
    write("a", settings, {0, 2});
    return read_peft_adapter(directory_ / "a").contradiction(layers);
  };
  const json names = {{"target_modules", {"q_proj", "v_proj"}}};
  EXPECT_TRUE(mentions(warning(names, 3),
                       "target_modules selects 1 module without tensors, first "
                       "model.layers.1.self_attn.q_proj: nothing is added there"));
  EXPECT_TRUE(mentions(warning(names, 12),
                       "selects 10 modules without tensors, first "
                       "model.layers.1.self_attn.q_proj"));
  // An adapter of some layers that says so.
  for (const json& settings :
       {json{{"target_modules", {"q_proj"}}, {"layers_to_transform", {0, 2}}},
        json{{"target_modules", {"0.self_attn.q_proj", "layers.2.self_attn.q_proj"}}}}) {
    EXPECT_EQ(warning(settings, 4), "") << settings;
  }
}

TEST_F(PeftPlaces, SaysWhereTheAdapterIs) {
  write("several/one");
  write("several/two");
  put("several/notes/x.txt", "");
  EXPECT_EQ(hint_of(refused("several")),
            "there are adapters in it, of which one is to be given: one, two");
  const std::string file = refused("several/one/adapter_model.safetensors");
  EXPECT_TRUE(mentions(file, "is a file, where a directory is needed"));
  EXPECT_EQ(hint_of(file),
            "give the directory that it is in: adapter=" + (directory_ / "several/one").string());
  put("a.gguf", "GGUF");
  EXPECT_TRUE(mentions(refused("a.gguf"), "give adapter= the directory that it was made from"));
}

// With ensure_weight_tying and save_embedding_layers PEFT saves a tied head and its embedding three
// times each, and computes with one of them. Only the embedding is named.
TEST_F(PeftPlaces, RepeatsOfATiedHeadAreDropped) {
  write("a", {{"modules_to_save", {"embed_tokens"}}, {"ensure_weight_tying", true}});
  const std::string prefix = "base_model.model.", module = prefix + "model.layers.0.mlp.up_proj";
  std::vector<SafetensorsSpec> specs = {{module + ".lora_A.weight", "F32", {1, 3}},
                                        {module + ".lora_B.weight", "F32", {3, 1}}};
  for (const char* path : {"model.embed_tokens", "lm_head"}) {
    for (const char* part : {".weight", ".modules_to_save.weight", ".original_module.weight"}) {
      specs.push_back({prefix + path + part, "F32", {1, 3}});
    }
  }
  SafetensorsWriter writer(directory_ / "a/adapter_model.safetensors", specs);
  for (const SafetensorsSpec& spec : specs) writer.write(spec.name, std::vector<uint8_t>(12, 0x3C));
  writer.close();
  const PeftAdapter read = read_peft_adapter(directory_ / "a");
  ASSERT_EQ(read.tensors.size(), 3u);
  EXPECT_EQ(read.tensors[0].name, "model.embed_tokens.weight");
  EXPECT_FALSE(read.unties_embedding);
}

}  // namespace
}  // namespace jackscrew
