#include "formats/gguf_model_writer.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "base/error.h"
#include "formats/gguf_names.h"
#include "formats/gguf_writer.h"
#include "quant/gguf_mixtures.h"

namespace jackscrew {

namespace {

constexpr const char* kOtherFiles =
    "a Hugging Face directory has: output_dir=DIR storage=bf16 writes one, and in a run export=hf";

[[noreturn]] void no_place(const std::string& what, const std::string& hint) {
  throw Error(ErrorKind::model, fmt::format("GGUF has no place for {}", what), hint);
}

// general.file_type of a file that is no known mixture: that of the format of most of its bytes,
// if there is one.
std::optional<uint32_t> most_frequent_type(const std::vector<ModelTensor>& tensors) {
  std::map<std::string_view, int64_t> bytes;
  for (const ModelTensor& tensor : tensors) bytes[tensor.format->name()] += tensor.bytes();
  const auto most = std::max_element(
      bytes.begin(), bytes.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  return gguf_file_type_of(most->first);
}

// What remains true of a model whose weights are rounded otherwise, or have an adapter merged in.
constexpr const char* kDescription[] = {"author",       "base_model", "basename",  "datasets",
                                        "description",  "finetune",   "languages", "license",
                                        "organization", "repo_url",   "sampling",  "size_label",
                                        "source",       "tags",       "url",       "version"};

// Whether a key is general.license, general.license.link, or the like.
bool is_description(std::string_view key) {
  constexpr std::string_view kGeneral = "general.";
  if (!key.starts_with(kGeneral)) return false;
  key.remove_prefix(kGeneral.size());
  return std::ranges::find(kDescription, key.substr(0, key.find('.'))) != std::end(kDescription);
}

void add_description(const GgufModel& model, GgufMetadata& metadata) {
  constexpr const char* kName = "general.name";
  const bool is_named = model.from != nullptr && model.from->type(kName) == GgufType::string;
  const std::string own = is_named ? model.from->text(kName) : std::string();
  metadata.add(kName, own.empty() ? model.name : own);
  if (model.from == nullptr) return;
  for (const std::string& key : model.from->keys()) {
    if (is_description(key)) metadata.add_encoded(key, model.from->encoded(key));
  }
}

void add_unsigned(const std::string& key, int64_t value, GgufMetadata& metadata) {
  if (!std::in_range<uint32_t>(value)) no_place(fmt::format("{} = {}", key, value), kOtherFiles);
  metadata.add(key, static_cast<uint32_t>(value));
}

void add_rope(const ModelConfig& config, const std::string& architecture, GgufMetadata& metadata) {
  const std::string own = architecture + ".";
  const RopeScaling& scaling = config.rope_scaling;
  add_unsigned(own + "rope.dimension_count", config.head_dim, metadata);
  metadata.add(own + "rope.freq_base", static_cast<float>(config.rope_theta));
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      return;
    case RopeScaling::Kind::llama3:  // as rope_factors_of(), which llama.cpp reads for "llama"
                                     // alone
      if (architecture == "llama") return;
      no_place(fmt::format("rope scaling \"llama3\" in a model of {}", architecture), kOtherFiles);
    case RopeScaling::Kind::dynamic:
      no_place("rope scaling \"dynamic\"", kOtherFiles);
    case RopeScaling::Kind::linear:
      metadata.add(own + "rope.scaling.type", "linear");
      break;
    case RopeScaling::Kind::yarn:
      metadata.add(own + "rope.scaling.type", "yarn");
      add_unsigned(own + "rope.scaling.original_context_length",
                   scaling.original_max_position_embeddings, metadata);
      const double own_factor = RopeScaling::yarn_attention_factor(scaling.factor);
      if (scaling.attention_factor != own_factor) {
        metadata.add(own + "rope.scaling.attn_factor",
                     static_cast<float>(scaling.attention_factor / own_factor));
      }
      const RopeScaling usual;
      if (!scaling.truncate) {
        no_place("YaRN with limits that are not rounded to whole pairs", kOtherFiles);
      }
      if (scaling.beta_fast != usual.beta_fast || scaling.beta_slow != usual.beta_slow) {
        metadata.add(own + "rope.scaling.yarn_beta_fast", static_cast<float>(scaling.beta_fast));
        metadata.add(own + "rope.scaling.yarn_beta_slow", static_cast<float>(scaling.beta_slow));
      }
      break;
  }
  metadata.add(own + "rope.scaling.factor", static_cast<float>(scaling.factor));
}

void add_config(const GgufModel& model, const std::vector<ModelTensor>& tensors,
                GgufMetadata& metadata) {
  const ModelConfig& config = model.config;
  const std::string architecture = gguf_architecture(*config.architecture).name;
  const std::string own = architecture + ".";
  metadata.add("general.architecture", architecture);
  metadata.add("general.type", "model");
  add_description(model, metadata);
  if (const auto type = model.file_type ? model.file_type : most_frequent_type(tensors)) {
    metadata.add("general.file_type", *type);
  }
  metadata.add("general.quantization_version", uint32_t{2});
  add_unsigned(own + "vocab_size", config.vocab_size, metadata);
  add_unsigned(own + "context_length", config.max_position_embeddings, metadata);
  add_unsigned(own + "embedding_length", config.hidden_size, metadata);
  add_unsigned(own + "block_count", config.num_hidden_layers, metadata);
  add_unsigned(own + "feed_forward_length", config.intermediate_size, metadata);
  add_unsigned(own + "attention.head_count", config.num_attention_heads, metadata);
  add_unsigned(own + "attention.head_count_kv", config.num_key_value_heads, metadata);
  metadata.add(own + "attention.layer_norm_rms_epsilon", static_cast<float>(config.rms_norm_eps));
  add_unsigned(own + "attention.key_length", config.head_dim, metadata);
  add_unsigned(own + "attention.value_length", config.head_dim, metadata);
  if (config.sliding_window != 0) {
    if (config.first_sliding_layer != 0 || architecture != "llama") {
      no_place(config.first_sliding_layer != 0
                   ? std::string("a sliding window of some blocks only")
                   : fmt::format("a sliding window in a model of {}", architecture),
               kOtherFiles);
    }
    add_unsigned(own + "attention.sliding_window", config.sliding_window, metadata);
  }
  if (!config.unrotated.empty() &&
      config.unrotated != unrotated_every(kUnrotatedInterval, config.num_hidden_layers)) {
    no_place(
        fmt::format("blocks without rotary positions other than every {}th", kUnrotatedInterval),
        kOtherFiles);
  }
  add_rope(config, architecture, metadata);
}

void add_id(const char* key, int64_t id, GgufMetadata& metadata) {
  if (id >= 0) add_unsigned(key, id, metadata);
}

void add_tokenizer(GgufTokenizerMetadata tokenizer, int64_t vocab_size, GgufMetadata& metadata) {
  if (tokenizer.tokens.empty()) return;
  constexpr int64_t kUnused = 5;            // token type
  constexpr double kWorstScore = -10000.0;  // as other programs pad
  for (int64_t id = std::ssize(tokenizer.tokens); id < vocab_size; ++id) {
    tokenizer.tokens.push_back(fmt::format("[PAD{}]", id));
    if (!tokenizer.token_types.empty()) tokenizer.token_types.push_back(kUnused);
    if (!tokenizer.scores.empty()) tokenizer.scores.push_back(kWorstScore);
  }
  metadata.add("tokenizer.ggml.model", tokenizer.model);
  if (!tokenizer.pre.empty()) metadata.add("tokenizer.ggml.pre", tokenizer.pre);
  metadata.add("tokenizer.ggml.tokens", tokenizer.tokens);
  std::vector<int32_t> types(tokenizer.token_types.begin(), tokenizer.token_types.end());
  if (!types.empty()) metadata.add("tokenizer.ggml.token_type", types);
  std::vector<float> scores(tokenizer.scores.begin(), tokenizer.scores.end());
  if (!scores.empty()) metadata.add("tokenizer.ggml.scores", scores);
  // llama.cpp refuses byte-level BPE without the key, even where there are no merges.
  if (tokenizer.model == "gpt2" || !tokenizer.merges.empty()) {
    metadata.add("tokenizer.ggml.merges", tokenizer.merges);
  }
  add_id("tokenizer.ggml.bos_token_id", tokenizer.bos_id, metadata);
  add_id("tokenizer.ggml.eos_token_id", tokenizer.eos_id, metadata);
  add_id("tokenizer.ggml.eot_token_id", tokenizer.eot_id, metadata);
  add_id("tokenizer.ggml.eom_token_id", tokenizer.eom_id, metadata);
  add_id("tokenizer.ggml.unknown_token_id", tokenizer.unk_id, metadata);
  add_id("tokenizer.ggml.padding_token_id", tokenizer.pad_id, metadata);
  if (tokenizer.add_bos) metadata.add("tokenizer.ggml.add_bos_token", *tokenizer.add_bos);
  if (tokenizer.add_eos) metadata.add("tokenizer.ggml.add_eos_token", *tokenizer.add_eos);
  if (tokenizer.add_space_prefix) {
    metadata.add("tokenizer.ggml.add_space_prefix", *tokenizer.add_space_prefix);
  }
  if (!tokenizer.chat_template.empty()) {
    metadata.add("tokenizer.chat_template", tokenizer.chat_template);
  }
  if (tokenizer.tool_template.empty()) return;
  metadata.add("tokenizer.chat_templates", std::vector<std::string>{"tool_use"});
  metadata.add("tokenizer.chat_template.tool_use", tokenizer.tool_template);
}

// The divisors that llama.cpp applies to the pairs' frequencies; empty where it computes them
// itself.
std::vector<float> rope_factors_of(const ModelConfig& config) {
  std::vector<float> factors;
  if (config.rope_scaling.kind != RopeScaling::Kind::llama3) return factors;
  const int64_t pairs = config.head_dim / 2;
  for (int64_t i = 0; i < pairs; ++i) {
    const double exponent = static_cast<double>(i) / static_cast<double>(pairs);
    const double frequency = std::pow(config.rope_theta, -exponent);
    factors.push_back(static_cast<float>(llama3_factor(frequency, config.rope_scaling)));
  }
  return factors;
}

GgufTensorSpec gguf_spec(const ModelTensor& tensor) {
  const std::optional<uint32_t> type = ggml_type(tensor.format->name());
  if (!type) no_place(fmt::format("{} in {}", tensor.spec.name, tensor.format->name()), "");
  return {gguf_name(tensor.spec), *type, tensor.spec.shape(), tensor.bytes()};
}

// Everything in a file that precedes the weights' bytes.
struct GgufContents {
  GgufMetadata metadata;
  std::vector<float> rope_factors;  // the values of the first tensor, if there are any
  std::vector<GgufTensorSpec> specs;

  GgufContents(const GgufModel& model, const std::vector<ModelTensor>& tensors)
      : rope_factors(rope_factors_of(model.config)) {
    add_config(model, tensors, metadata);
    add_tokenizer(model.tokenizer, model.config.vocab_size, metadata);
    if (!rope_factors.empty()) {
      specs.push_back({kGgufRopeFactors,
                       *ggml_type("f32"),
                       {std::ssize(rope_factors)},
                       std::ssize(factor_bytes())});
    }
    for (const ModelTensor& tensor : tensors) specs.push_back(gguf_spec(tensor));
  }

  std::span<const uint8_t> factor_bytes() const {
    return {reinterpret_cast<const uint8_t*>(rope_factors.data()),
            rope_factors.size() * sizeof(float)};
  }
};

class GgufModelWriter : public ModelWriter {
 public:
  GgufModelWriter(const fs::path& path, const GgufModel& model,
                  const std::vector<ModelTensor>& tensors)
      : config_(model.config) {
    const GgufContents contents(model, tensors);
    writer_ = std::make_unique<GgufWriter>(path, contents.metadata, contents.specs);
    if (contents.rope_factors.empty()) return;
    writer_->write(kGgufRopeFactors, contents.factor_bytes());
  }

  int64_t interleaved_heads(const WeightSpec& weight) const override {
    return gguf_interleaved_heads(config_, weight.name);
  }
  void write(const WeightSpec& weight, std::span<const uint8_t> bytes) override {
    writer_->write(gguf_name(weight), bytes);
  }
  void close() override { writer_->close(); }

 private:
  ModelConfig config_;
  std::unique_ptr<GgufWriter> writer_;
};

}  // namespace

void check_gguf_config(const ModelConfig& config) {
  GgufMetadata unused;
  add_config({.config = config, .name = {}, .tokenizer = {}, .file_type = 0}, {}, unused);
}

std::unique_ptr<ModelWriter> make_gguf_model_writer(const fs::path& path, const GgufModel& model,
                                                    const std::vector<ModelTensor>& tensors) {
  return std::make_unique<GgufModelWriter>(path, model, tensors);
}

int64_t gguf_model_bytes(const GgufModel& model, const std::vector<ModelTensor>& tensors) {
  const GgufContents contents(model, tensors);
  return GgufWriter::bytes(contents.metadata, contents.specs);
}

}  // namespace jackscrew
