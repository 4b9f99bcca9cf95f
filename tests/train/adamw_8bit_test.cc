// 8-bit states through whole runs: what the single weights do, which no loss shows.
#include <cmath>

#include "formats/safetensors.h"
#include "tests/support/tiny_run.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

constexpr double kRate = 1e-4;

// Tensors large enough for 8-bit states. Of 600 tokens some 60 occur, most of them rarely. A row is
// a block of states, as in real models: smaller ones would share a block among tokens.
constexpr const char* kQwenConfig = R"({
  "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": 600,
  "hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 1, "head_dim": 16,
  "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
  "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257})";

using Weights = std::map<std::string, std::vector<float>>;

Weights weights_of(const fs::path& path) {
  const SafetensorsFile file(path);
  Weights out;
  for (const SafetensorsEntry& entry : file.entries()) {
    EXPECT_EQ(entry.dtype, "F32") << entry.name;
    const auto* data = reinterpret_cast<const float*>(entry.bytes.data());
    out[entry.name] = std::vector<float>(data, data + entry.bytes.size() / sizeof(float));
  }
  return out;
}

// In learning rates.
double largest_change(const Weights& from, const Weights& to) {
  double largest = 0.0;
  for (const auto& [name, values] : from) {
    for (size_t i = 0; i < values.size(); ++i) {
      const double change =
          std::abs(static_cast<double>(to.at(name)[i]) - static_cast<double>(values[i]));
      largest = worse(largest, change / kRate);
    }
  }
  return largest;
}

// 200 steps at a constant rate move no weight by more than some 200 learning rates.
TEST(SlowAdamw8bit, MovesNoWeightFarFurtherThanStatesInF32Do) {
  for (const std::string method : {"full storage=f32", "rotary active_params=60%"}) {
    const TinyRun tiny("adamw_8bit");
    const std::string settings = "method=" + method +
                                 " model=" + tiny.file("qwen3.json", kQwenConfig) +
                                 " max_steps=200 lr_scheduler_type=constant report_samples=0 "
                                 "save_steps=0 learning_rate=";
    const auto trained = [&](const std::string& name, const std::string& more) {
      tiny.must_train(name, settings + more);
      return weights_of(tiny.path(name) / "model.safetensors");
    };
    const Weights start = trained("start", "1e-30");
    const double exact = largest_change(start, trained("f32", "1e-4 optimizer=adamw"));
    const double coded = largest_change(start, trained("coded", "1e-4 optimizer=adamw_8bit"));
    EXPECT_GT(exact, 20.0) << method;
    EXPECT_LT(coded, 1.1 * exact) << method;
  }
}

}  // namespace
}  // namespace jackscrew
