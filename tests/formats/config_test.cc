#include "model/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "formats/hf_config.h"
#include "tests/formats/support.h"

namespace jackscrew {
namespace {

using nlohmann::json;

// The sizes of SmolLM2-135M.
ModelConfig small_config() {
  ModelConfig config;
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_hidden_layers = 30;
  config.num_attention_heads = 9;
  config.num_key_value_heads = 3;
  config.head_dim = 64;
  config.max_position_embeddings = 8192;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 100000.0;
  config.tie_word_embeddings = true;
  config.bos_token_id = 1;
  config.eos_token_ids = {2};
  return config;
}

TEST(ModelConfig, CountsParametersWithTiedHeadsOnce) {
  ModelConfig config = small_config();
  EXPECT_EQ(config.parameter_count(), 134515008);  // as published
  config.tie_word_embeddings = false;
  EXPECT_EQ(config.parameter_count(), 134515008 + 49152 * 576);
}

TEST(ModelConfig, NamesTheFieldThatIsWrong) {
  const auto refused = [](auto&& change) {
    ModelConfig config = small_config();
    change(config);
    return model_error([&] { config.validate(); });
  };
  small_config().validate();
  using C = ModelConfig;
  EXPECT_TRUE(mentions(refused([](C& c) { c.vocab_size = 0; }), "vocab_size"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.hidden_size = -1; }), "hidden_size"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.head_dim = 0; }), "head_dim"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.head_dim = 63; }), "head_dim"));
  EXPECT_TRUE(
      mentions(refused([](C& c) { c.num_hidden_layers = int64_t{1} << 60; }), "num_hidden_layers"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.num_hidden_layers = 3000; }), "num_hidden_layers"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.num_key_value_heads = 2; }), "num_key_value_heads"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.rms_norm_eps = 0; }), "rms_norm_eps"));
  EXPECT_TRUE(
      mentions(refused([](C& c) { c.rope_theta = std::numeric_limits<double>::quiet_NaN(); }),
               "rope_theta"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.initializer_range = -1; }), "initializer_range"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.bos_token_id = 49152; }), "bos_token_id"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.pad_token_id = -2; }), "pad_token_id"));
  EXPECT_TRUE(mentions(refused([](C& c) { c.eos_token_ids = {2, 50000}; }), "eos_token_id"));
  EXPECT_TRUE(mentions(refused([](C& c) {
                         c.rope_scaling = {RopeScaling::Kind::linear, 0.0};
                       }),
                       "factor"));
  EXPECT_TRUE(mentions(refused([](C& c) {
                         c.rope_scaling = {RopeScaling::Kind::llama3, 8.0, 4.0, 4.0, 8192};
                       }),
                       "high_freq_factor"));
  // Each size alone is thinkable, their product is not countable.
  EXPECT_TRUE(mentions(refused([](C& c) { c.hidden_size = c.vocab_size = int64_t{1} << 33; }),
                       "more parameters"));
}

json version4() {
  return json::parse(R"({
    "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64,
    "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
    "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
    "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
    "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
    "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
    "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})");
}

json version5() {
  json out = version4();
  out.erase("rope_theta");
  out.erase("torch_dtype");
  out["dtype"] = "bfloat16";
  out["rope_parameters"] = out["rope_scaling"];
  out["rope_parameters"]["rope_theta"] = 500000.0;
  out.erase("rope_scaling");
  return out;
}

ModelConfig parse(const json& value) {
  return parse_hf_config(value.dump(), "config.json");
}

TEST(HfConfig, ReadsBothVersionsAlike) {
  for (const json& text : {version4(), version5()}) {
    const ModelConfig config = parse(text);
    EXPECT_EQ(config.vocab_size, 128256);
    EXPECT_EQ(config.hidden_size, 2048);
    EXPECT_EQ(config.intermediate_size, 8192);
    EXPECT_EQ(config.num_hidden_layers, 16);
    EXPECT_EQ(config.num_attention_heads, 32);
    EXPECT_EQ(config.num_key_value_heads, 8);
    EXPECT_EQ(config.head_dim, 64);
    EXPECT_EQ(config.max_position_embeddings, 131072);
    EXPECT_EQ(config.rms_norm_eps, 1e-5);
    EXPECT_EQ(config.rope_theta, 500000.0);
    EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::llama3);
    EXPECT_EQ(config.rope_scaling.factor, 32.0);
    EXPECT_EQ(config.rope_scaling.low_freq_factor, 1.0);
    EXPECT_EQ(config.rope_scaling.high_freq_factor, 4.0);
    EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 8192);
    EXPECT_TRUE(config.tie_word_embeddings);
    EXPECT_EQ(config.bos_token_id, 128000);
    EXPECT_EQ(config.pad_token_id, -1);
    EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{128001, 128008, 128009}));
    EXPECT_EQ(config.parameter_count(), 1235814400);  // Llama 3.2 1B, as published
  }
}

TEST(HfConfig, FillsInWhatIsAbsent) {
  json text = version4();
  for (const char* key : {"head_dim", "num_key_value_heads", "rope_scaling", "rope_theta",
                          "rms_norm_eps", "bos_token_id", "eos_token_id", "tie_word_embeddings",
                          "max_position_embeddings", "initializer_range", "architectures"}) {
    text.erase(key);
  }
  ModelConfig config = parse(text);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.num_key_value_heads, 32);
  EXPECT_EQ(config.rope_scaling.kind, RopeScaling::Kind::none);
  EXPECT_EQ(config.rope_theta, 10000.0);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_FALSE(config.tie_word_embeddings);

  text["head_dim"] = nullptr;
  text["bos_token_id"] = nullptr;
  text["eos_token_id"] = nullptr;
  text["pad_token_id"] = -1;
  config = parse(text);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.bos_token_id, -1);
  EXPECT_EQ(config.pad_token_id, -1);
  EXPECT_TRUE(config.eos_token_ids.empty());
  for (const json& ends : {json(-1), json{-1}, json{-1, -1}}) {
    text["eos_token_id"] = ends;
    EXPECT_TRUE(parse(text).eos_token_ids.empty()) << ends;
  }
  text["eos_token_id"] = {2, -1};
  EXPECT_EQ(parse(text).eos_token_ids, std::vector<int64_t>{2});

  text["hidden_size"] = 2040;
  EXPECT_TRUE(mentions(model_error([&] { parse(text); }), "hidden_size = 2040 is not a multiple"));
  text["head_dim"] = 128;  // need not be hidden_size / heads
  EXPECT_EQ(parse(text).head_dim, 128);
}

TEST(HfConfig, ReadsLinearRopeUnderItsOldName) {
  json text = version4();
  text["rope_scaling"] = {{"type", "linear"}, {"factor", 2.0}};
  EXPECT_EQ(parse(text).rope_scaling.kind, RopeScaling::Kind::linear);
  EXPECT_EQ(parse(text).rope_scaling.factor, 2.0);
  text["rope_scaling"] = {{"rope_type", "default"}};
  EXPECT_EQ(parse(text).rope_scaling.kind, RopeScaling::Kind::none);
}

// The configuration of Qwen2.5-7B-Instruct-1M's kind of rope: what is absent follows from the rest.
TEST(HfConfig, FillsInYarn) {
  json text = version4();
  text["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  RopeScaling scaling = parse(text).rope_scaling;
  EXPECT_EQ(scaling.kind, RopeScaling::Kind::yarn);
  EXPECT_EQ(scaling.beta_fast, 32.0);
  EXPECT_EQ(scaling.beta_slow, 1.0);
  EXPECT_TRUE(scaling.truncate);
  EXPECT_DOUBLE_EQ(scaling.attention_factor, 0.1 * std::log(4.0) + 1.0);
  text["rope_scaling"]["mscale"] = 0.5;
  text["rope_scaling"]["mscale_all_dim"] = 1.0;
  scaling = parse(text).rope_scaling;
  EXPECT_DOUBLE_EQ(scaling.attention_factor,
                   (0.05 * std::log(4.0) + 1.0) / (0.1 * std::log(4.0) + 1.0));
  text["rope_scaling"]["factor"] = nullptr;
  text["rope_scaling"]["attention_factor"] = 1.5;
  scaling = parse(text).rope_scaling;
  EXPECT_EQ(scaling.factor, 4.0);  // 131072 of 32768
  EXPECT_EQ(scaling.attention_factor, 1.5);
}

// As transformers takes them: only some parameters of YaRN have their default where they are 0.
TEST(HfConfig, TakesNullsAndZerosOfYarnAsTransformersDoes) {
  json text = version4();
  json& rope = text["rope_scaling"];
  rope = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  rope["truncate"] = nullptr;
  EXPECT_FALSE(parse(text).rope_scaling.truncate);
  rope.update({{"beta_fast", 0.0}, {"beta_slow", 0.0}, {"mscale", 0.0}, {"mscale_all_dim", 1.0}});
  const RopeScaling scaling = parse(text).rope_scaling;
  EXPECT_EQ(scaling.beta_fast, 32.0);
  EXPECT_EQ(scaling.beta_slow, 1.0);
  EXPECT_DOUBLE_EQ(scaling.attention_factor, 0.1 * std::log(4.0) + 1.0);
  for (const char* key : {"attention_factor", "factor"}) {
    json zero = text;
    zero["rope_scaling"][key] = 0.0;
    EXPECT_TRUE(mentions(model_error([&] { parse(zero); }), fmt::format("rope {} = 0", key)));
  }
}

// Qwen2.5 has 32768 positions, and its README adds `rope_scaling` alone for four times as many.
TEST(HfConfig, YarnLengthensWhatItWasGiven) {
  json text = version4();
  text["max_position_embeddings"] = 32768;
  text["rope_scaling"] = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(parse(text).longest_sequence(), 131072);
  text["max_position_embeddings"] = 131072;  // already counted in
  EXPECT_EQ(parse(text).longest_sequence(), 131072);
  text["max_position_embeddings"] = 200000;
  EXPECT_EQ(parse(text).longest_sequence(), 200000);
  text["rope_scaling"] = {{"type", "linear"}, {"factor", 4.0}};
  EXPECT_EQ(parse(text).longest_sequence(), 200000);
}

TEST(HfConfig, ReadsOtherArchitectures) {
  const auto of_type = [](const char* name, const char* type) {
    json text = version4();
    text["architectures"] = {name};
    text["model_type"] = type;
    return text;
  };
  json mistral = of_type("MistralForCausalLM", "mistral");
  EXPECT_EQ(parse(mistral).sliding_window, 4096);  // transformers' default
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(parse(mistral).sliding_window, 0);
  mistral["sliding_window"] = 100;
  EXPECT_EQ(parse(mistral).window_of(0), 100);
  mistral["sliding_window"] = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(parse(mistral).window_of(0), int64_t{1} << 53);  // positions can be added to it
  json qwen2 = of_type("Qwen2ForCausalLM", "qwen2");
  qwen2["sliding_window"] = 4096;
  qwen2["max_window_layers"] = 3;
  EXPECT_EQ(parse(qwen2).sliding_window, 0);
  qwen2["use_sliding_window"] = true;
  EXPECT_EQ(parse(qwen2).window_of(2), 0);
  EXPECT_EQ(parse(qwen2).window_of(3), 4096);
  qwen2.erase("num_key_value_heads");
  EXPECT_TRUE(mentions(model_error([&] { parse(qwen2); }), "\"num_key_value_heads\" is missing"));
  qwen2["num_key_value_heads"] = nullptr;
  EXPECT_EQ(parse(qwen2).num_key_value_heads, 32);  // num_attention_heads
  json qwen3 = of_type("Qwen3ForCausalLM", "qwen3");
  qwen3.erase("head_dim");
  EXPECT_EQ(parse(qwen3).head_dim, 128);
  // Published sizes of Qwen2.5-0.5B and Qwen3-0.6B.
  json small = of_type("Qwen2ForCausalLM", "qwen2");
  small.update({{"vocab_size", 151936},
                {"hidden_size", 896},
                {"intermediate_size", 4864},
                {"num_hidden_layers", 24},
                {"num_attention_heads", 14},
                {"num_key_value_heads", 2},
                {"bos_token_id", 151643},
                {"eos_token_id", 151645}});
  EXPECT_EQ(parse(small).parameter_count(), 494032768);
  small = of_type("Qwen3ForCausalLM", "qwen3");
  small.update({{"vocab_size", 151936},
                {"hidden_size", 1024},
                {"intermediate_size", 3072},
                {"num_hidden_layers", 28},
                {"num_attention_heads", 16},
                {"num_key_value_heads", 8},
                {"head_dim", 128},
                {"bos_token_id", 151643},
                {"eos_token_id", 151645}});
  EXPECT_EQ(parse(small).parameter_count(), 596049920);
  json smollm3 = of_type("SmolLM3ForCausalLM", "smollm3");
  smollm3.update({{"vocab_size", 128256}, {"num_hidden_layers", 8}});
  for (const char* key : {"tie_word_embeddings", "bos_token_id", "eos_token_id", "pad_token_id"}) {
    smollm3.erase(key);
  }
  const ModelConfig nope = parse(smollm3);
  EXPECT_TRUE(nope.rotates(2));
  EXPECT_FALSE(nope.rotates(3));
  EXPECT_FALSE(nope.rotates(7));
  EXPECT_TRUE(nope.tie_word_embeddings);
  EXPECT_EQ(nope.bos_token_id, 128000);
  EXPECT_EQ(nope.eos_token_ids, std::vector<int64_t>{128001});
  EXPECT_EQ(nope.pad_token_id, 128004);
  smollm3["no_rope_layers"] = {0, 1, 1, 1, 1, 1, 0, 1};
  EXPECT_EQ(parse(smollm3).unrotated,
            (std::vector<bool>{true, false, false, false, false, false, true, false}));
  json wrong = smollm3;
  wrong["no_rope_layers"] = {1, 1};
  EXPECT_TRUE(mentions(model_error([&] { parse(wrong); }), "2 entries for 8 layers"));
  wrong = smollm3;
  wrong["no_rope_layer_interval"] = 0;
  EXPECT_TRUE(mentions(model_error([&] { parse(wrong); }), "interval 0"));
  wrong = smollm3;
  wrong["use_sliding_window"] = true;
  EXPECT_TRUE(mentions(model_error([&] { parse(wrong); }), "use_sliding_window of SmolLM3"));
  for (const json& text : {mistral, qwen3, small, smollm3}) {
    const std::string written = write_hf_config(parse(text), "bfloat16");
    EXPECT_EQ(write_hf_config(parse(json::parse(written)), "bfloat16"), written);
  }
}

TEST(HfConfig, NamesWhatItDoesNotSupport) {
  const auto refused = [](const char* key, const json& value) {
    json text = version4();
    text[key] = value;
    return model_error([&] { parse(text); });
  };
  const std::string architecture = refused("architectures", {"GemmaForCausalLM"});
  EXPECT_TRUE(mentions(architecture, "config.json: architecture GemmaForCausalLM"));
  EXPECT_TRUE(mentions(architecture, "| supported architectures: LlamaForCausalLM"));
  EXPECT_TRUE(mentions(refused("model_type", "gpt2"), "model_type gpt2"));
  EXPECT_TRUE(mentions(refused("model_type", "qwen2"), "qwen2 of architecture LlamaForCausalLM"));
  EXPECT_TRUE(mentions(refused("architectures", {"LlamaForCausalLM", "MistralForCausalLM"}),
                       "architecture MistralForCausalLM"));
  EXPECT_TRUE(mentions(refused("layer_types", {"full_attention", "sliding_attention"}),
                       "layer_types with sliding_attention at 1"));
  EXPECT_TRUE(mentions(refused("hidden_act", "gelu"), "hidden_act gelu"));
  json swish = version4();
  swish["hidden_act"] = "swish";  // as transformers takes it, too
  EXPECT_EQ(parse(swish).hidden_size, 2048);
  EXPECT_TRUE(mentions(refused("attention_bias", true), "attention_bias"));
  EXPECT_TRUE(mentions(refused("mlp_bias", true), "mlp_bias"));
  EXPECT_TRUE(mentions(refused("attention_dropout", 0.1), "attention_dropout"));
  EXPECT_TRUE(mentions(refused("partial_rotary_factor", 0.5), "partial_rotary_factor"));
  for (const json& acausal : {json(false), json(nullptr)}) {
    EXPECT_TRUE(mentions(refused("is_causal", acausal), "is_causal other than true"));
  }
  json causal = version4();
  causal["is_causal"] = true;
  EXPECT_EQ(parse(causal).hidden_size, 2048);
  EXPECT_TRUE(mentions(refused("quantization_config", {{"quant_method", "hqq"}}), "hqq"));
  json bits = {{"quant_method", "bitsandbytes"}, {"load_in_4bit", true}};
  for (const char* type : {"nf4", "fp4", "nf5"}) {
    bits["bnb_4bit_quant_type"] = type;
    json quantised = version4();
    quantised["quantization_config"] = bits;
    if (type == std::string("nf5")) {
      EXPECT_TRUE(mentions(refused("quantization_config", bits), "bnb_4bit_quant_type nf5"));
    } else {
      EXPECT_EQ(parse(quantised).hidden_size, parse(version4()).hidden_size);
    }
  }
  json bytes = version4();
  bytes["quantization_config"] = {{"quant_method", "bitsandbytes"}, {"load_in_8bit", true}};
  EXPECT_EQ(parse(bytes).hidden_size, parse(version4()).hidden_size);
  // Older files of bitsandbytes do not name it.
  bytes["quantization_config"].erase("quant_method");
  EXPECT_EQ(parse(bytes).hidden_size, parse(version4()).hidden_size);
  bits.erase("quant_method");
  EXPECT_TRUE(mentions(refused("quantization_config", bits), "bnb_4bit_quant_type nf5"));
  EXPECT_TRUE(mentions(refused("quantization_config", {{"load_in_4bit", false}}), "(none)"));
  const std::string rope = refused("rope_scaling", {{"rope_type", "longrope"}, {"factor", 4.0}});
  EXPECT_TRUE(mentions(rope, "rope type longrope"));
  EXPECT_TRUE(mentions(rope, "| supported rope types: default, linear, dynamic, llama3, yarn"));
  EXPECT_TRUE(
      mentions(refused("rope_scaling",
                       {{"type", "yarn"}, {"factor", 4.0}, {"beta_fast", 1.0}, {"beta_slow", 2.0}}),
               "beta_fast = 1 is not above beta_slow = 2"));
  EXPECT_TRUE(mentions(refused("rope_scaling", {{"type", "linear"}}), "\"factor\" is missing"));
  EXPECT_TRUE(mentions(refused("rope_scaling", {{"full", json::object()}}), "full"));
  EXPECT_TRUE(mentions(refused("rope_scaling", "linear"), "rope_scaling: not a JSON object"));
  EXPECT_TRUE(mentions(refused("hidden_size", nullptr), "\"hidden_size\" is missing"));
  EXPECT_TRUE(mentions(refused("hidden_size", 2048.5), "\"hidden_size\" is not an integer"));
  EXPECT_TRUE(mentions(refused("head_dim", 63), "config.json: model config: head_dim = 63"));
  EXPECT_TRUE(mentions(refused("vocab_size", std::numeric_limits<uint64_t>::max()), "vocab_size"));
  EXPECT_TRUE(mentions(refused("num_attention_heads", 0), "num_attention_heads"));
  EXPECT_TRUE(mentions(refused("eos_token_id", {1, "x"}), "eos_token_id"));
}

TEST(HfConfig, RefusesDamagedText) {
  const auto refused = [](const std::string& text) {
    return model_error([&] { parse_hf_config(text, "config.json"); });
  };
  EXPECT_TRUE(mentions(refused(""), "config.json: not valid JSON"));
  EXPECT_TRUE(mentions(refused("[]"), "not a JSON object"));
  EXPECT_TRUE(mentions(refused("{\"a\": 1, \"a\": 2}"), "\"a\" appears twice"));
  EXPECT_TRUE(mentions(refused(std::string(100000, '[')), "nested deeper"));
  EXPECT_TRUE(mentions(refused("{\"vocab_size\": 1e999}"), "not valid JSON"));
  EXPECT_TRUE(mentions(refused("{\"a\": \"\xFF\"}"), "not valid JSON"));
}

TEST(HfConfig, RoundTrips) {
  ModelConfig config = small_config();
  for (const RopeScaling& scaling :
       {RopeScaling{}, RopeScaling{RopeScaling::Kind::linear, 2.0},
        RopeScaling{RopeScaling::Kind::dynamic, 3.0},
        RopeScaling{RopeScaling::Kind::llama3, 32.0, 1.0, 4.0, 8192},
        RopeScaling{RopeScaling::Kind::yarn, 4.0, 1.0, 4.0, 512, 1.25, 16.0, 2.0, false}}) {
    config.rope_scaling = scaling;
    const std::string text = write_hf_config(config, "bfloat16");
    const ModelConfig read = parse_hf_config(text, "config.json");
    EXPECT_EQ(write_hf_config(read, "bfloat16"), text);
    EXPECT_EQ(read.rope_scaling.kind, scaling.kind);
    EXPECT_EQ(read.rope_scaling.factor, scaling.factor);
    EXPECT_EQ(read.rope_scaling.attention_factor, scaling.attention_factor);
    EXPECT_EQ(read.rope_scaling.truncate, scaling.truncate);
    EXPECT_EQ(read.parameter_count(), config.parameter_count());
    // Either half alone says the same.
    json version5_only = json::parse(text);
    version5_only.erase("rope_theta");
    version5_only.erase("rope_scaling");
    json version4_only = json::parse(text);
    version4_only.erase("rope_parameters");
    EXPECT_EQ(write_hf_config(parse(version5_only), "bfloat16"), text);
    EXPECT_EQ(write_hf_config(parse(version4_only), "bfloat16"), text);
  }
  config.bos_token_id = -1;
  config.eos_token_ids = {2, 7};
  const ModelConfig read = parse_hf_config(write_hf_config(config, "float32"), "config.json");
  EXPECT_EQ(read.bos_token_id, -1);
  EXPECT_EQ(read.eos_token_ids, (std::vector<int64_t>{2, 7}));
  EXPECT_EQ(json::parse(write_hf_generation_config(config)),
            (json{{"_from_model_config", true}, {"eos_token_id", {2, 7}}}));
}

TEST(GenerationConfig, EndsTextsByAnotherTokenToo) {
  const auto added = [](const char* text) { return json::parse(add_end_token(text, 7).value()); };
  EXPECT_EQ(added(R"({"eos_token_id": 2, "top_p": 0.9})"),
            (json{{"eos_token_id", {2, 7}}, {"top_p", 0.9}}));
  EXPECT_EQ(added(R"({"eos_token_id": [2, 3]})"), (json{{"eos_token_id", {2, 3, 7}}}));
  EXPECT_EQ(added(R"({"eos_token_id": null})"), (json{{"eos_token_id", 7}}));
  EXPECT_EQ(added("{}"), (json{{"eos_token_id", 7}}));
  for (const char* same : {R"({"eos_token_id":7})", R"({ "eos_token_id": [2, 7] })"}) {
    EXPECT_EQ(add_end_token(same, 7), same);
  }
  for (const char* none : {"", "7", "[]", "{"}) EXPECT_FALSE(add_end_token(none, 7)) << none;
  EXPECT_FALSE(add_end_token("{\"a\": " + std::string(100000, '['), 7));
  EXPECT_FALSE(
      add_end_token("{\"a\": " + std::string(100000, '[') + std::string(100000, ']') + "}", 7));
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(parse_end_tokens(R"({"eos_token_id": [2, 7, "x"]})"), (Ids{2, 7}));
  EXPECT_EQ(parse_end_tokens(R"({"eos_token_id": 2})"), Ids{2});
  for (const char* none : {"", "7", "{}", R"({"eos_token_id": null})"}) {
    EXPECT_EQ(parse_end_tokens(none), Ids()) << none;
  }
}

}  // namespace
}  // namespace jackscrew
