#include "model/config.h"

#include <algorithm>
#include <cmath>

#include "base/checked.h"
#include "base/error.h"
#include "model/weights.h"

namespace jackscrew {

namespace {

// A size that exceeds the largest published one by more than this factor is taken for damage.
constexpr int64_t kAbsurdFactor = int64_t{1} << 20;
// That factor for layers, which take host memory before any budget is checked: 13 KB each in a
// plan.
constexpr int64_t kAbsurdLayers = 16;

struct SizeField {
  const char* name;
  int64_t value;
  int64_t largest_published;
  int64_t absurd_factor = kAbsurdFactor;
};

void check_size(const SizeField& field) {
  if (field.value <= 0) {
    fail(ErrorKind::model, "model config: {} is missing or not positive ({})", field.name,
         field.value);
  }
  if (field.value > field.largest_published * field.absurd_factor) {
    fail(ErrorKind::model, "model config: {} = {} is out of range", field.name, field.value);
  }
}

void check_positive(const char* name, double value) {
  if (!std::isfinite(value) || value <= 0.0) {
    fail(ErrorKind::model, "model config: {} = {} is not a positive number", name, value);
  }
}

void check_token(const char* name, int64_t id, int64_t vocab_size) {
  if (id < 0 || id >= vocab_size) {
    fail(ErrorKind::model, "model config: {} = {} is not below vocab_size = {}", name, id,
         vocab_size);
  }
}

constexpr Architecture kArchitectures[] = {
    {"LlamaForCausalLM", "llama", false, false, false},
    {"MistralForCausalLM", "mistral", false, false, false},
    {"Qwen2ForCausalLM", "qwen2", true, false, false},
    {"Qwen3ForCausalLM", "qwen3", false, true, false},
    {"SmolLM3ForCausalLM", "smollm3", false, false, true},
};

void check_yarn(const RopeScaling& rope) {
  check_positive("rope attention_factor", rope.attention_factor);
  check_positive("rope beta_slow", rope.beta_slow);
  if (!(rope.beta_fast > rope.beta_slow) || !std::isfinite(rope.beta_fast)) {
    fail(ErrorKind::model, "model config: rope beta_fast = {} is not above beta_slow = {}",
         rope.beta_fast, rope.beta_slow);
  }
}

void check_rope(const RopeScaling& rope) {
  using Kind = RopeScaling::Kind;
  if (rope.kind == Kind::none) return;
  check_positive("rope factor", rope.factor);
  if (rope.kind != Kind::llama3 && rope.kind != Kind::yarn) return;
  check_size(
      {"rope original_max_position_embeddings", rope.original_max_position_embeddings, 10485760});
  if (rope.kind == Kind::yarn) return check_yarn(rope);
  check_positive("rope low_freq_factor", rope.low_freq_factor);
  check_positive("rope high_freq_factor", rope.high_freq_factor);
  // The interpolation divides by their difference.
  if (rope.high_freq_factor <= rope.low_freq_factor) {
    fail(ErrorKind::model,
         "model config: rope high_freq_factor = {} is not above low_freq_factor = {}",
         rope.high_freq_factor, rope.low_freq_factor);
  }
}

}  // namespace

std::span<const Architecture> architectures() {
  return kArchitectures;
}

const Architecture* find_architecture(std::string_view name) {
  for (const Architecture& architecture : kArchitectures) {
    if (name == architecture.name) return &architecture;
  }
  return nullptr;
}

const Architecture& llama_architecture() {
  return kArchitectures[0];
}

const char* rope_type_name(RopeScaling::Kind kind) {
  return std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                      [&](const RopeType& type) { return type.kind == kind; })
      ->name;
}

std::vector<bool> unrotated_every(int64_t interval, int64_t layers) {
  std::vector<bool> unrotated;
  for (int64_t layer = 0; layer < layers; ++layer) {
    unrotated.push_back((layer + 1) % interval == 0);
  }
  return unrotated;
}

double RopeScaling::yarn_attention_factor(double factor) {
  return factor <= 1.0 ? 1.0 : 0.1 * std::log(factor) + 1.0;
}

void ModelConfig::validate() const {
  const SizeField fields[] = {
      {"vocab_size", vocab_size, 262144},
      {"hidden_size", hidden_size, 16384},
      {"intermediate_size", intermediate_size, 65536},
      {"num_hidden_layers", num_hidden_layers, 128, kAbsurdLayers},
      {"num_attention_heads", num_attention_heads, 128},
      {"num_key_value_heads", num_key_value_heads, 128},
      {"head_dim", head_dim, 256},
      {"max_position_embeddings", max_position_embeddings, 10485760},
  };
  for (const SizeField& field : fields) check_size(field);
  if (num_attention_heads % num_key_value_heads != 0) {
    fail(ErrorKind::model,
         "model config: num_attention_heads = {} is not a multiple of num_key_value_heads = {}",
         num_attention_heads, num_key_value_heads);
  }
  if (head_dim % 2 != 0) {
    fail(ErrorKind::model, "model config: head_dim = {} is odd; rotary positions need pairs",
         head_dim);
  }
  check_positive("rms_norm_eps", rms_norm_eps);
  check_positive("rope_theta", rope_theta);
  if (!std::isfinite(initializer_range) || initializer_range < 0.0) {
    fail(ErrorKind::model, "model config: initializer_range = {} is not a number >= 0",
         initializer_range);
  }
  check_rope(rope_scaling);
  // The formula of dynamic divides by head_dim - 2, that of yarn by the logarithm of the base.
  if (rope_scaling.kind == RopeScaling::Kind::dynamic && head_dim == 2) {
    fail(ErrorKind::model, "model config: dynamic rope with head_dim = {}", head_dim);
  }
  if (rope_scaling.kind == RopeScaling::Kind::yarn && rope_theta <= 1.0) {
    fail(ErrorKind::model, "model config: yarn rope with rope_theta = {}", rope_theta);
  }
  if (sliding_window < 0 || first_sliding_layer < 0) {
    fail(ErrorKind::model, "model config: sliding_window = {} from layer {}", sliding_window,
         first_sliding_layer);
  }
  if (bos_token_id != -1) check_token("bos_token_id", bos_token_id, vocab_size);
  if (pad_token_id != -1) check_token("pad_token_id", pad_token_id, vocab_size);
  for (const int64_t id : eos_token_ids) check_token("eos_token_id", id, vocab_size);
  try {
    parameter_count();
  } catch (const Error&) {
    fail(ErrorKind::model,
         "model config: hidden_size = {} with vocab_size = {}, intermediate_size = {} and "
         "num_hidden_layers = {} gives more parameters than can be counted",
         hidden_size, vocab_size, intermediate_size, num_hidden_layers);
  }
}

int64_t ModelConfig::parameter_count() const {
  const auto count = [&](const StageSpec& part) {
    int64_t sum = 0;
    for (const WeightSpec& weight : weights_of(*this, part)) {
      sum = checked_add(sum, checked_mul(weight.rows, weight.cols));
    }
    return sum;
  };
  // All blocks are alike.
  return checked_add(count({0, 0, true, true}),
                     checked_mul(num_hidden_layers, count({0, 1, false, false})));
}

int64_t ModelConfig::longest_sequence() const {
  // Capped at 2^53: no real factor leads beyond that, and absurd ones would not fit an int64_t.
  const auto stretched = [&](int64_t positions) {
    return static_cast<int64_t>(
        std::min(rope_scaling.factor * static_cast<double>(positions), 0x1p53));
  };
  using Kind = RopeScaling::Kind;
  if (rope_scaling.kind == Kind::dynamic) return stretched(max_position_embeddings);
  // Qwen's recipe for long texts adds the scaling and leaves max_position_embeddings as it was.
  if (rope_scaling.kind == Kind::yarn) {
    return std::max(max_position_embeddings,
                    stretched(rope_scaling.original_max_position_embeddings));
  }
  return max_position_embeddings;
}

}  // namespace jackscrew
