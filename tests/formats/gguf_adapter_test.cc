// Adapters as GGUF files, through the reader, beside PEFT's files.
#include "formats/gguf_adapter.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <cstring>

#include "base/half.h"
#include "base/module_patterns.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "quant/plain.h"
#include "tests/support/errors.h"
#include "tests/support/paths.h"

namespace jackscrew {
namespace {

fs::path golden_path(const char* name) {
  return fs::path(kTestData) / "golden" / name;
}

class GgufAdapterTest : public ::testing::Test {
 protected:
  ~GgufAdapterTest() override { fs::remove(path_); }

  static ModelConfig config_of(const char* model) {
    const fs::path path = golden_path(model) / "config.json";
    return parse_hf_config(read_text(path), path.string());
  }
  GgufFile write(const char* model, const PeftAdapter& adapter) {
    const int64_t bytes =
        write_gguf_adapter(path_, config_of(model), "mine", adapter, f32_format());
    EXPECT_EQ(bytes, static_cast<int64_t>(fs::file_size(path_)));
    return GgufFile(path_);
  }
  static std::vector<float> values_of(const GgufFile& file, const std::string& name) {
    const GgufTensor* tensor = file.find(name);
    if (tensor == nullptr) return {};
    std::vector<float> values(tensor->bytes.size() / sizeof(float));
    std::memcpy(values.data(), tensor->bytes.data(), tensor->bytes.size());
    return values;
  }
  static const PeftTensor& array_of(const PeftAdapter& adapter, const std::string& name) {
    for (const PeftTensor& array : adapter.tensors) {
      if (array.name == name) return array;
    }
    throw std::out_of_range(name);
  }
  // Gives every value of every B this one.
  void fill_b(PeftAdapter& adapter, float value) {
    for (PeftTensor& tensor : adapter.tensors) {
      if (!tensor.name.ends_with(".lora_B.weight")) continue;
      const auto& values = filled_.emplace_back(static_cast<size_t>(tensor.size()), value);
      tensor.dtype = DType::f32;
      tensor.bytes = {reinterpret_cast<const uint8_t*>(values.data()),
                      values.size() * sizeof(float)};
    }
  }
  void refused(const char* model, const char* adapter, const std::string& part) {
    expect_error(ErrorKind::model, part,
                 [&] { write(model, read_peft_adapter(golden_path(adapter))); });
    EXPECT_FALSE(fs::exists(path_));
  }

  std::vector<std::vector<float>> filled_;  // what the tensors of adapters point to
  const fs::path path_ =
      fs::temp_directory_path() / fmt::format("jackscrew_gguf_adapter_{}.gguf", ::getpid());
};

// Of a Llama: rows of B lie as those of q do, the halves of each head interleaved.
TEST_F(GgufAdapterTest, HasTheFactorsUnderTheNamesOfTheirWeights) {
  const PeftAdapter adapter = read_peft_adapter(golden_path("lora"));
  const ModelConfig config = config_of("gqa_tied");
  const GgufFile file = write("gqa_tied", adapter);
  EXPECT_EQ(file.text("general.type"), "adapter");
  EXPECT_EQ(file.text("general.architecture"), "llama");
  EXPECT_EQ(file.text("adapter.type"), "lora");
  EXPECT_EQ(file.number("adapter.lora.alpha"), 8.0);
  EXPECT_EQ(file.tensors().size(), adapter.tensors.size());
  const std::string layer = "model.layers.1.";
  EXPECT_EQ(values_of(file, "blk.1.ffn_down.weight.lora_a"),
            array_of(adapter, layer + "mlp.down_proj.lora_A.weight").values());
  EXPECT_EQ(values_of(file, "blk.1.attn_v.weight.lora_b"),
            array_of(adapter, layer + "self_attn.v_proj.lora_B.weight").values());
  const std::string name = layer + "self_attn.q_proj.lora_B.weight";
  const PeftTensor& b = array_of(adapter, name);
  const std::vector<float> rows = values_of(file, "blk.1.attn_q.weight.lora_b");
  const std::vector<float> values = b.values();
  ASSERT_EQ(rows.size(), values.size());
  const int64_t rank = b.shape[1], half = config.head_dim / 2;
  for (int64_t head = 0; head < config.num_attention_heads; ++head) {
    for (int64_t pair = 0; pair < half; ++pair) {
      for (int64_t side = 0; side < 2; ++side) {
        const int64_t from = (head * 2 + side) * half + pair;
        const int64_t to = (head * half + pair) * 2 + side;
        for (int64_t i = 0; i < rank; ++i) {
          EXPECT_EQ(rows[static_cast<size_t>(to * rank + i)],
                    values[static_cast<size_t>(from * rank + i)]);
        }
      }
    }
  }
}

// Values are in memory a part at a time; where rows are interleaved, parts are of whole heads.
TEST_F(GgufAdapterTest, WritesLargeFactorsInParts) {
  PeftAdapter adapter = read_peft_adapter(golden_path("lora"));
  const ModelConfig config = config_of("gqa_tied");
  constexpr int64_t kRank = 12000;
  const std::string module = "model.layers.1.self_attn.q_proj.";
  for (PeftTensor& tensor : adapter.tensors) {
    if (!tensor.name.starts_with(module)) continue;
    const bool is_b = tensor.name.ends_with("lora_B.weight");
    tensor.shape[is_b ? 1 : 0] = kRank;
    std::vector<float>& own =
        filled_.emplace_back(static_cast<size_t>(tensor.shape[0] * tensor.shape[1]));
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<float>(i);
    tensor.dtype = DType::f32;
    tensor.bytes = {reinterpret_cast<const uint8_t*>(own.data()), own.size() * sizeof(float)};
  }
  const GgufFile file = write("gqa_tied", adapter);
  EXPECT_EQ(values_of(file, "blk.1.attn_q.weight.lora_a"),
            array_of(adapter, module + "lora_A.weight").values());
  const std::vector<float> rows = values_of(file, "blk.1.attn_q.weight.lora_b");
  ASSERT_EQ(std::ssize(rows), config.num_attention_heads * config.head_dim * kRank);
  const int64_t half = config.head_dim / 2;
  for (int64_t row = 0; row < config.num_attention_heads * config.head_dim; ++row) {
    const int64_t head = row / config.head_dim, within = row % config.head_dim;
    const int64_t from = head * config.head_dim + within % 2 * half + within / 2;
    for (const int64_t i : {int64_t{0}, kRank - 1}) {
      ASSERT_EQ(rows[static_cast<size_t>(row * kRank + i)], static_cast<float>(from * kRank + i));
    }
  }
}

// What llama.cpp will compute, alpha / rank of the file times B, is each module's own scale.
TEST_F(GgufAdapterTest, BringsEveryScaleIntoB) {
  const PeftAdapter adapter = read_peft_adapter(golden_path("lora_patterns"));
  const auto& settings = adapter.settings;
  ASSERT_TRUE(settings.contains("alpha_pattern") && settings.contains("rank_pattern"));
  const ModuleNumbers alphas(settings["alpha_pattern"].get<std::map<std::string, double>>());
  const GgufFile file = write("qwen2_yarn", adapter);
  for (const char* module : {"self_attn.q_proj", "mlp.down_proj"}) {
    const std::string path = fmt::format("model.layers.1.{}", module);
    const PeftTensor* b = nullptr;
    for (const PeftTensor& array : adapter.tensors) {
      if (array.name == path + ".lora_B.weight") b = &array;
    }
    ASSERT_NE(b, nullptr) << path;
    const auto rank = static_cast<double>(b->shape[1]);
    const double alpha = alphas.find(path).value_or(settings["lora_alpha"].get<double>());
    const double scale = alpha / (settings["use_rslora"].get<bool>() ? std::sqrt(rank) : rank);
    const auto written =
        values_of(file, module == std::string_view("mlp.down_proj") ? "blk.1.ffn_down.weight.lora_b"
                                                                    : "blk.1.attn_q.weight.lora_b");
    const std::vector<float> values = b->values();
    ASSERT_EQ(written.size(), values.size()) << module;
    for (size_t i = 0; i < written.size(); ++i) {
      const double theirs =
          file.number("adapter.lora.alpha") / rank * static_cast<double>(written[i]);
      EXPECT_NEAR(theirs, scale * static_cast<double>(values[i]), 1e-6 * std::abs(theirs));
    }
  }
}

// As f32 the one alpha would be 0 or infinite.
TEST_F(GgufAdapterTest, AnAlphaBeyondF32GoesIntoB) {
  PeftAdapter adapter = read_peft_adapter(golden_path("lora"));
  fill_b(adapter, 0.5f);
  adapter.settings["alpha_pattern"] = {{"v_proj", 8.0}};
  for (const double alpha : {1e-60, 1e-40}) {
    adapter.settings["lora_alpha"] = alpha;
    const GgufFile file = write("gqa_tied", adapter);
    EXPECT_EQ(file.number("adapter.lora.alpha"), 1.0);
    for (const float value : values_of(file, "blk.1.attn_v.weight.lora_b")) ASSERT_EQ(value, 4.0f);
    for (const float value : values_of(file, "blk.1.ffn_down.weight.lora_b")) {
      ASSERT_EQ(value, static_cast<float>(alpha * 0.5));
    }
  }
  adapter.settings["lora_alpha"] = 1e300;
  for (const Format* format : {&f32_format(), &f16_format()}) {
    expect_error(
        ErrorKind::model, "has values beyond f32 once its alpha is in them | look at lora_alpha",
        [&] { write_gguf_adapter(path_, config_of("gqa_tied"), "mine", adapter, *format); });
  }
}

TEST_F(GgufAdapterTest, InF16) {
  PeftAdapter adapter = read_peft_adapter(golden_path("lora"));
  const ModelConfig config = config_of("gqa_tied");
  write_gguf_adapter(path_, config, "mine", adapter, f16_format());
  const GgufFile file(path_);
  const auto values = array_of(adapter, "model.layers.1.mlp.down_proj.lora_A.weight").values();
  const GgufTensor* tensor = file.find("blk.1.ffn_down.weight.lora_a");
  ASSERT_TRUE(tensor != nullptr && tensor->bytes.size() == 2 * values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    f16 value{};
    std::memcpy(&value.bits, tensor->bytes.data() + 2 * i, sizeof(value.bits));
    EXPECT_NEAR(to_float(value), values[i], 1e-3 * std::abs(values[i]));
  }
  std::vector<float> large = adapter.tensors[0].values();
  large[0] = 1e5f;
  adapter.tensors[0].dtype = DType::f32;
  adapter.tensors[0].bytes = {reinterpret_cast<const uint8_t*>(large.data()), 4 * large.size()};
  fs::remove(path_);
  expect_error(ErrorKind::model, "more than f16 can hold",
               [&] { write_gguf_adapter(path_, config, "mine", adapter, f16_format()); });
}

// A young adapter's B may be that small, and as zeros it would change nothing.
TEST_F(GgufAdapterTest, ValuesThatF16LosesAreRefused) {
  PeftAdapter adapter = read_peft_adapter(golden_path("lora"));
  const ModelConfig config = config_of("gqa_tied");
  const auto write_f16 = [&] { write_gguf_adapter(path_, config, "mine", adapter, f16_format()); };
  fill_b(adapter, 2e-8f);
  const std::string error = error_of(ErrorKind::model, write_f16);
  EXPECT_NE(error.find("lora_B.weight has values of at most 2e-08, too small for f16: most of them "
                       "would become 0 | storage=f32 can"),
            std::string::npos)
      << error;
  for (const float value : values_of(write("gqa_tied", adapter), "blk.1.ffn_down.weight.lora_b")) {
    ASSERT_EQ(value, 2e-8f);
  }
  for (const float value : {0.0f, 1e-7f}) {
    fill_b(adapter, value);
    write_f16();
  }
}

TEST_F(GgufAdapterTest, WhatHasNoPlaceIsRefused) {
  refused("gqa_tied", "dora", "GGUF has no place for the learned lengths of DoRA");
  refused("mha_untied", "lora_saved_modules", "GGUF has no place for modules trained whole");
  refused("qwen3", "lora", "of shape");
}

}  // namespace
}  // namespace jackscrew
