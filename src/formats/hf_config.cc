#include "formats/hf_config.h"

#include "base/error.h"
#include "formats/json_text.h"

namespace jackscrew {

namespace {

using nlohmann::json;

constexpr const char* kArchitecture = "LlamaForCausalLM";

[[noreturn]] void unsupported(const std::string& where, const std::string& what,
                              const std::string& hint) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", where, what), hint);
}

void check_architecture(const JsonFields& fields) {
  const std::vector<std::string> architectures = fields.texts("architectures");
  for (const std::string& name : architectures) {
    if (name != kArchitecture) {
      unsupported(fields.where(), "architecture " + name,
                  fmt::format("supported architectures: {}", kArchitecture));
    }
  }
  const std::string type = fields.text("model_type", architectures.empty() ? "(none)" : "llama");
  if (type != "llama") {
    unsupported(fields.where(), "model_type " + type,
                fmt::format("supported architectures: {}", kArchitecture));
  }
}

// Weights in NF4 of bitsandbytes say the rest themselves (formats/bitsandbytes.h).
void check_quantization(const JsonFields& fields) {
  const std::string method = fields.text("quant_method", "(none)");
  std::string what = "quant_method " + method;
  if (method == "bitsandbytes") {
    const std::string type = fields.text("bnb_4bit_quant_type", "fp4");
    if (fields.boolean("load_in_4bit", false) && type == "nf4") return;
    what +=
        fields.boolean("load_in_8bit", false) ? " in 8 bits" : " and bnb_4bit_quant_type " + type;
  }
  unsupported(fields.where(), what,
              "use the original weights, a GGUF file, or NF4 of bitsandbytes");
}

// Members that would change the computation in a way that this program does not follow.
void check_computation(const JsonFields& fields) {
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu") {
    unsupported(fields.where(), "hidden_act " + activation, "supported activations: silu");
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (fields.boolean(key, false)) {
      unsupported(fields.where(), fmt::format("{} true", key),
                  "supported: linear layers without bias");
    }
  }
  if (fields.number("attention_dropout", 0.0) != 0.0) {
    unsupported(fields.where(), "attention_dropout other than 0", "set it to 0 in that file");
  }
  if (fields.number("partial_rotary_factor", 1.0) != 1.0) {
    unsupported(fields.where(), "partial_rotary_factor other than 1", "");
  }
  if (const json* quantization = fields.find("quantization_config")) {
    check_quantization(JsonFields(*quantization, fields.where() + ": quantization_config"));
  }
}

// `rope_theta` beside the scaling parameters (version 4) or among them (version 5). Where both
// `rope_scaling` and `rope_parameters` stand, transformers lets the former win.
void parse_rope(const JsonFields& fields, ModelConfig& config) {
  config.rope_theta = fields.number("rope_theta", 10000.0);
  const char* key = fields.has("rope_scaling") ? "rope_scaling" : "rope_parameters";
  const json* parameters = fields.find(key);
  if (parameters == nullptr) return;
  const JsonFields rope(*parameters, fmt::format("{}: {}", fields.where(), key));
  for (const auto& [name, value] : parameters->items()) {
    if (value.is_object()) unsupported(rope.where(), "a rope of its own for " + name, "");
  }
  config.rope_theta = rope.number("rope_theta", config.rope_theta);
  if (rope.number("partial_rotary_factor", 1.0) != 1.0) {
    unsupported(rope.where(), "partial_rotary_factor other than 1", "");
  }
  const std::string type = rope.text("rope_type", rope.text("type", "default"));
  RopeScaling& scaling = config.rope_scaling;
  if (type == "default") return;
  if (type == "linear") {
    scaling.kind = RopeScaling::Kind::linear;
    scaling.factor = rope.number("factor");
  } else if (type == "llama3") {
    scaling.kind = RopeScaling::Kind::llama3;
    scaling.factor = rope.number("factor");
    scaling.low_freq_factor = rope.number("low_freq_factor");
    scaling.high_freq_factor = rope.number("high_freq_factor");
    scaling.original_max_position_embeddings =
        rope.integer("original_max_position_embeddings", config.max_position_embeddings);
  } else {
    unsupported(rope.where(), "rope type " + type, "supported rope types: default, linear, llama3");
  }
}

int64_t parse_head_dim(const JsonFields& fields, const ModelConfig& config) {
  if (fields.has("head_dim")) return fields.integer("head_dim");
  if (config.num_attention_heads <= 0 || config.hidden_size % config.num_attention_heads != 0) {
    fail(ErrorKind::model, "{}: hidden_size = {} is not a multiple of num_attention_heads = {}",
         fields.where(), config.hidden_size, config.num_attention_heads);
  }
  return config.hidden_size / config.num_attention_heads;
}

// An absent id has a default, null means none, and so does the -1 of some published files.
int64_t parse_token(const json& root, const JsonFields& fields, const char* key, int64_t fallback) {
  if (!root.contains(key)) return fallback;
  return fields.integer(key, -1);
}

json rope_json(const RopeScaling& scaling) {
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
      return {{"rope_type", "linear"}, {"factor", scaling.factor}};
    case RopeScaling::Kind::llama3:
      return {{"rope_type", "llama3"},
              {"factor", scaling.factor},
              {"low_freq_factor", scaling.low_freq_factor},
              {"high_freq_factor", scaling.high_freq_factor},
              {"original_max_position_embeddings", scaling.original_max_position_embeddings}};
  }
  return nullptr;
}

void add_tokens(const ModelConfig& config, json& out) {
  out["bos_token_id"] = config.bos_token_id < 0 ? json(nullptr) : json(config.bos_token_id);
  out["pad_token_id"] = config.pad_token_id < 0 ? json(nullptr) : json(config.pad_token_id);
  out["eos_token_id"] = nullptr;
  if (config.eos_token_ids.size() == 1) out["eos_token_id"] = config.eos_token_ids[0];
  if (config.eos_token_ids.size() > 1) out["eos_token_id"] = config.eos_token_ids;
}

}  // namespace

ModelConfig parse_hf_config(const std::string& json_text, const std::string& where) {
  const json root = parse_json(json_text, where);
  const JsonFields fields(root, where);
  check_architecture(fields);
  check_computation(fields);
  ModelConfig config;
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.intermediate_size = fields.integer("intermediate_size");
  config.num_hidden_layers = fields.integer("num_hidden_layers");
  config.num_attention_heads = fields.integer("num_attention_heads");
  config.num_key_value_heads = fields.integer("num_key_value_heads", config.num_attention_heads);
  config.head_dim = parse_head_dim(fields, config);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 2048);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  config.initializer_range = fields.number("initializer_range", 0.02);
  parse_rope(fields, config);
  config.bos_token_id = parse_token(root, fields, "bos_token_id", 1);
  config.pad_token_id = parse_token(root, fields, "pad_token_id", -1);
  config.eos_token_ids = fields.integers("eos_token_id");
  if (!root.contains("eos_token_id")) config.eos_token_ids = {2};
  if (config.eos_token_ids == std::vector<int64_t>{-1}) config.eos_token_ids.clear();
  try {
    config.validate();
  } catch (const Error& error) {
    throw Error(error.kind(), where + ": " + error.what(), error.hint());
  }
  return config;
}

std::string write_hf_config(const ModelConfig& config, const std::string& torch_dtype) {
  json out = {{"architectures", {kArchitecture}},
              {"model_type", "llama"},
              {"vocab_size", config.vocab_size},
              {"hidden_size", config.hidden_size},
              {"intermediate_size", config.intermediate_size},
              {"num_hidden_layers", config.num_hidden_layers},
              {"num_attention_heads", config.num_attention_heads},
              {"num_key_value_heads", config.num_key_value_heads},
              {"head_dim", config.head_dim},
              {"hidden_act", "silu"},
              {"max_position_embeddings", config.max_position_embeddings},
              {"initializer_range", config.initializer_range},
              {"rms_norm_eps", config.rms_norm_eps},
              {"use_cache", true},
              {"pretraining_tp", 1},
              {"tie_word_embeddings", config.tie_word_embeddings},
              {"attention_bias", false},
              {"attention_dropout", 0.0},
              {"mlp_bias", false},
              {"torch_dtype", torch_dtype}};
  add_tokens(config, out);
  // Version 4 reads the first two, version 5 the third; version 5 would also take the first two,
  // but newer tools look for the third alone.
  const json scaling = rope_json(config.rope_scaling);
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = scaling;
  out["rope_parameters"] = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
  out["rope_parameters"]["rope_theta"] = config.rope_theta;
  return dump_json(out) + "\n";
}

std::string write_hf_generation_config(const ModelConfig& config) {
  json out = {{"_from_model_config", true}};
  add_tokens(config, out);
  // Absent here means none; null would be written back by transformers on every save.
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    if (out[key].is_null()) out.erase(key);
  }
  return dump_json(out) + "\n";
}

}  // namespace jackscrew
