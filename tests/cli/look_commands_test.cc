// inspect, data, logits and doctor, through the program.
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "formats/safetensors.h"
#include "tests/cli/run_program.h"

namespace jackscrew {
namespace {

using nlohmann::json;

TEST(Inspect, Model) {
  const json model = json::parse(run("inspect --json " + golden_model("gqa_tied")).out);
  EXPECT_EQ(model["architecture"], "LlamaForCausalLM");
  EXPECT_EQ(model["num_hidden_layers"], 3);
  EXPECT_EQ(model["num_attention_heads"], 4);
  EXPECT_EQ(model["num_key_value_heads"], 1);
  EXPECT_EQ(model["tie_word_embeddings"], true);
  EXPECT_TRUE(model["tokenizer"].is_null());
  int64_t elements = 0;
  int64_t bytes = 0;
  for (const auto& tensor : model["tensors"]) {
    int64_t size = 1;
    for (const auto& extent : tensor["shape"]) size *= extent.get<int64_t>();
    elements += size;
    bytes += tensor["bytes"].get<int64_t>();
    EXPECT_EQ(tensor["dtype"], "f32");
  }
  EXPECT_EQ(model["parameters"], elements);
  EXPECT_EQ(model["storage"]["f32"]["bytes"], bytes);
  EXPECT_EQ(model["storage"]["f32"]["elements"], elements);
  EXPECT_EQ(model["storage"]["f32"]["tensors"], model["tensors"].size());
}

TEST(Inspect, TextListsTensorsOnRequest) {
  const std::string path = golden_model("odd");
  const Outcome brief = run("inspect " + path);
  EXPECT_EQ(brief.exit_code, 0);
  EXPECT_NE(brief.out.find("LlamaForCausalLM"), std::string::npos);
  EXPECT_EQ(brief.out.find("q_proj"), std::string::npos);
  EXPECT_NE(run("inspect --verbose " + path).out.find("q_proj"), std::string::npos);
}

TEST(Inspect, ShapesAndConfigs) {
  const json shape = json::parse(run("inspect llama-7b --json").out);
  EXPECT_EQ(shape["parameters"], 6738415616);
  EXPECT_TRUE(shape["tensors"].empty());
  EXPECT_EQ(run("inspect " + golden_model("odd/config.json")).exit_code, 0);
}

TEST(Inspect, Adapter) {
  const json adapter = json::parse(run("inspect --json " + golden_model("lora")).out);
  EXPECT_EQ(adapter["adapter"], "LORA");
  EXPECT_EQ(adapter["r"], 4);
  EXPECT_EQ(adapter["lora_alpha"], 8.0);
  EXPECT_EQ(adapter["target_modules"].size(), 4u);
  // A and B of four modules in three layers.
  EXPECT_EQ(adapter["tensors"].size(), 24u);
}

TEST(Inspect, Refusals) {
  EXPECT_EQ(run(std::string("inspect") + kErrorsOnly).exit_code, 2);
  EXPECT_EQ(run(std::string("inspect /nonexistent") + kErrorsOnly).exit_code, 5);
  EXPECT_EQ(run(std::string("inspect a b") + kErrorsOnly).exit_code, 2);
}

}  // namespace
}  // namespace jackscrew
