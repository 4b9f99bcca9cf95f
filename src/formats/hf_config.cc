#include "formats/hf_config.h"

#include <algorithm>
#include <optional>

#include "base/error.h"
#include "formats/json_text.h"
#include "formats/quantised_layout.h"

namespace jackscrew {

namespace {

using nlohmann::json;

[[noreturn]] void unsupported(const std::string& where, const std::string& what,
                              const std::string& hint) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", where, what), hint);
}

bool is_qwen(const ModelConfig& config) {
  return std::string_view(config.architecture->model_type).starts_with("qwen");
}

// The architecture that `architectures` and `model_type` name: one is enough, both must agree.
const Architecture* parse_architecture(const JsonFields& fields) {
  std::string hint = "supported architectures: ";
  for (const Architecture& architecture : architectures()) {
    hint +=
        fmt::format("{}{}", &architecture == &architectures()[0] ? "" : ", ", architecture.name);
  }
  const Architecture* found = nullptr;
  for (const std::string& name : fields.texts("architectures")) {
    const Architecture* named = find_architecture(name);
    if (named == nullptr || (found != nullptr && named != found)) {
      unsupported(fields.where(), "architecture " + name, hint);
    }
    found = named;
  }
  if (found != nullptr && !fields.has("model_type")) return found;
  const std::string type = fields.text("model_type", "(none)");
  for (const Architecture& architecture : architectures()) {
    if (type != architecture.model_type) continue;
    if (found == nullptr || found == &architecture) return &architecture;
    unsupported(fields.where(), fmt::format("model_type {} of architecture {}", type, found->name),
                hint);
  }
  unsupported(fields.where(), "model_type " + type, hint);
}

// Checks the method only; the parameters are read with the tensors (formats/quantised_layout.h).
void check_quantization(const JsonFields& fields) {
  const std::string method = quantization_method(fields);
  check_quantization_method(method.empty() ? "(none)" : method, fields.where());
  if (method != "bitsandbytes") return;
  if (fields.boolean("load_in_8bit", false)) return;
  const std::string type = fields.text("bnb_4bit_quant_type", "fp4");
  if (fields.boolean("load_in_4bit", false) && (type == "nf4" || type == "fp4")) return;
  unsupported(fields.where(), "quant_method bitsandbytes and bnb_4bit_quant_type " + type,
              "use the original weights, a GGUF file, " + quantised_layouts_text());
}

// Refuses members that change the computation in a way that this program does not support.
void check_computation(const JsonFields& fields) {
  const std::string activation = fields.text("hidden_act", "silu");
  if (activation != "silu" && activation != "swish") {  // two names of one function
    unsupported(fields.where(), "hidden_act " + activation, "supported activations: silu");
  }
  for (const char* key : {"attention_bias", "mlp_bias"}) {
    if (fields.boolean(key, false)) {
      unsupported(fields.where(), fmt::format("{} true", key),
                  "supported: linear layers without bias, and Qwen2's of q, k and v");
    }
  }
  if (fields.number("attention_dropout", 0.0) != 0.0) {
    unsupported(fields.where(), "attention_dropout other than 0", "set it to 0 in that file");
  }
  if (fields.number("partial_rotary_factor", 1.0) != 1.0) {
    unsupported(fields.where(), "partial_rotary_factor other than 1", "");
  }
  // transformers takes null for false.
  if (fields.contains("is_causal") && !fields.boolean("is_causal", false)) {
    unsupported(fields.where(), "is_causal other than true",
                "supported: models whose tokens see none that follow");
  }
  if (const json* quantization = fields.find("quantization_config")) {
    check_quantization(JsonFields(*quantization, fields.where() + ": quantization_config"));
  }
}

// As in transformers: an absent or null factor follows from the two lengths, and 0 stands for the
// default of beta_fast, beta_slow, mscale and mscale_all_dim.
void parse_yarn(const JsonFields& rope, ModelConfig& config) {
  RopeScaling& scaling = config.rope_scaling;
  const auto nonzero_or = [&](const char* key, double fallback) {
    const double value = rope.find(key) == nullptr ? 0.0 : rope.number(key);
    return value == 0.0 ? fallback : value;
  };
  scaling.factor = rope.number("factor", static_cast<double>(config.max_position_embeddings) /
                                             static_cast<double>(std::max<int64_t>(
                                                 1, scaling.original_max_position_embeddings)));
  scaling.beta_fast = nonzero_or("beta_fast", 32.0);
  scaling.beta_slow = nonzero_or("beta_slow", 1.0);
  scaling.truncate = rope.boolean("truncate", !rope.contains("truncate"));  // null: false
  const double mscale = nonzero_or("mscale", 0.0);
  const double mscale_all_dim = nonzero_or("mscale_all_dim", 0.0);
  const auto of_factor = [&](double scale) {
    return scale * (RopeScaling::yarn_attention_factor(scaling.factor) - 1.0) + 1.0;
  };
  const double implied = mscale != 0.0 && mscale_all_dim != 0.0
                             ? of_factor(mscale) / of_factor(mscale_all_dim)
                             : of_factor(1.0);
  scaling.attention_factor = rope.number("attention_factor", implied);
}

// `rope_theta` stands beside the scaling parameters (version 4) or among them (version 5). If both
// `rope_scaling` and `rope_parameters` exist, transformers prefers the former unless it is empty.
void parse_rope(const JsonFields& fields, ModelConfig& config) {
  // The default of SmolLM3, and of all others.
  config.rope_theta = fields.number("rope_theta", config.architecture->nope ? 2e6 : 1e4);
  const json* scaling_field = fields.find("rope_scaling");
  const bool has_scaling = scaling_field != nullptr && !scaling_field->empty();
  const char* key = has_scaling ? "rope_scaling" : "rope_parameters";
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
  const auto named = std::find_if(std::begin(kRopeTypes), std::end(kRopeTypes),
                                  [&](const RopeType& known) { return type == known.name; });
  if (named == std::end(kRopeTypes)) {
    unsupported(rope.where(), "rope type " + type,
                "supported rope types: default, linear, dynamic, llama3, yarn");
  }
  scaling.kind = named->kind;
  const auto original_positions = [&] {
    // Among the parameters or, as Phi has it, beside them.
    return fields.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", config.max_position_embeddings));
  };
  switch (scaling.kind) {
    case RopeScaling::Kind::none:
      break;
    case RopeScaling::Kind::linear:
    case RopeScaling::Kind::dynamic:
      scaling.factor = rope.number("factor");
      break;
    case RopeScaling::Kind::llama3:
      scaling.factor = rope.number("factor");
      scaling.low_freq_factor = rope.number("low_freq_factor");
      scaling.high_freq_factor = rope.number("high_freq_factor");
      scaling.original_max_position_embeddings = original_positions();
      break;
    case RopeScaling::Kind::yarn:
      scaling.original_max_position_embeddings = original_positions();
      parse_yarn(rope, config);
      break;
  }
}

// Mistral's window applies to every block; Qwen's, if it is enabled, to the blocks from
// max_window_layers on. Version 5 lists the kind of each block; the list must agree with that.
void parse_window(const JsonFields& fields, ModelConfig& config) {
  if (config.architecture->nope && fields.boolean("use_sliding_window", false)) {
    unsupported(fields.where(), "use_sliding_window of SmolLM3", "set it to false in that file");
  }
  const bool slides = is_qwen(config)
                          ? fields.boolean("use_sliding_window", false)
                          : config.architecture->model_type == std::string_view("mistral");
  if (slides) {
    config.sliding_window = fields.contains("sliding_window") ? fields.integer("sliding_window", 0)
                                                              : 4096;  // the default of all
    if (is_qwen(config)) config.first_sliding_layer = fields.integer("max_window_layers", 28);
  }
  const std::vector<std::string> kinds = fields.texts("layer_types");
  for (size_t layer = 0; layer < kinds.size(); ++layer) {
    const bool sliding = config.window_of(static_cast<int64_t>(layer)) > 0;
    if (kinds[layer] == (sliding ? "sliding_attention" : "full_attention")) continue;
    unsupported(fields.where(), fmt::format("layer_types with {} at {}", kinds[layer], layer),
                "supported: full_attention below max_window_layers, sliding_attention above");
  }
}

int64_t parse_head_dim(const JsonFields& fields, const ModelConfig& config) {
  if (fields.has("head_dim")) return fields.integer("head_dim");
  if (config.architecture->qk_norm) return 128;  // Qwen3's default
  if (config.num_attention_heads <= 0 || config.hidden_size % config.num_attention_heads != 0) {
    fail(ErrorKind::model, "{}: hidden_size = {} is not a multiple of num_attention_heads = {}",
         fields.where(), config.hidden_size, config.num_attention_heads);
  }
  return config.hidden_size / config.num_attention_heads;
}

// no_rope_layers has a 1 for each block that rotates; without it, every no_rope_layer_interval-th
// does not. The number of blocks has been checked.
void parse_unrotated(const JsonFields& fields, ModelConfig& config) {
  if (!config.architecture->nope) return;
  const auto layers = static_cast<size_t>(config.num_hidden_layers);
  const std::vector<int64_t> rotates = fields.integers("no_rope_layers");
  const int64_t interval = fields.integer("no_rope_layer_interval", kUnrotatedInterval);
  if ((!rotates.empty() && rotates.size() < layers) || interval <= 0) {
    fail(ErrorKind::model, "{}: no_rope_layers has {} entries for {} layers, and interval {}",
         fields.where(), rotates.size(), layers, interval);
  }
  config.unrotated = unrotated_every(interval, config.num_hidden_layers);
  for (size_t layer = 0; layer < std::min(layers, rotates.size()); ++layer) {
    config.unrotated[layer] = rotates[layer] == 0;
  }
}

// An absent id has a default; null means none, as does the -1 of some published files.
int64_t parse_token(const JsonFields& fields, const char* key, int64_t fallback) {
  if (!fields.contains(key)) return fallback;
  return fields.integer(key, -1);
}

json rope_json(const RopeScaling& scaling) {
  if (scaling.kind == RopeScaling::Kind::none) return nullptr;
  json out = {{"rope_type", rope_type_name(scaling.kind)}, {"factor", scaling.factor}};
  if (scaling.kind == RopeScaling::Kind::llama3) {
    out["low_freq_factor"] = scaling.low_freq_factor;
    out["high_freq_factor"] = scaling.high_freq_factor;
    out["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
  } else if (scaling.kind == RopeScaling::Kind::yarn) {
    out["original_max_position_embeddings"] = scaling.original_max_position_embeddings;
    out["beta_fast"] = scaling.beta_fast;
    out["beta_slow"] = scaling.beta_slow;
    out["attention_factor"] = scaling.attention_factor;
    out["truncate"] = scaling.truncate;
  }
  return out;
}

// What the architecture has beside Llama.
void add_own_fields(const ModelConfig& config, json& out) {
  if (config.architecture->nope) {
    std::vector<int> rotates;
    for (const bool unrotated : config.unrotated) rotates.push_back(unrotated ? 0 : 1);
    out["no_rope_layers"] = rotates;
    out["use_sliding_window"] = false;
    return;
  }
  if (config.architecture == &llama_architecture()) return;
  out["sliding_window"] = config.sliding_window > 0 ? json(config.sliding_window) : json(nullptr);
  if (!is_qwen(config)) return;
  out["use_sliding_window"] = config.sliding_window > 0;
  out["max_window_layers"] =
      config.sliding_window > 0 ? config.first_sliding_layer : config.num_hidden_layers;
}

// Null where the text is no JSON object. That is no error, because no weight and no gradient
// depends on a generation_config.json.
json generation_object(const std::string& text) {
  try {
    json config = parse_json(text, "generation_config.json");
    return config.is_object() ? config : json();
  } catch (const Error&) {
    return {};
  }
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
  check_computation(fields);
  ModelConfig config;
  config.architecture = parse_architecture(fields);
  const bool llama = config.architecture == &llama_architecture();
  const bool nope = config.architecture->nope;
  config.vocab_size = fields.integer("vocab_size");
  config.hidden_size = fields.integer("hidden_size");
  config.intermediate_size = fields.integer("intermediate_size");
  config.num_hidden_layers = fields.integer("num_hidden_layers");
  config.num_attention_heads = fields.integer("num_attention_heads");
  // Other architectures' defaults are the numbers of one published model, so absent members are
  // errors. A null stands for num_attention_heads in all.
  std::optional<int64_t> key_value_heads;
  if (llama || fields.contains("num_key_value_heads")) key_value_heads = config.num_attention_heads;
  config.num_key_value_heads = fields.integer("num_key_value_heads", key_value_heads);
  config.head_dim = parse_head_dim(fields, config);
  config.max_position_embeddings = llama ? fields.integer("max_position_embeddings", 2048)
                                         : fields.integer("max_position_embeddings");
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", nope);  // SmolLM3's default
  config.initializer_range = fields.number("initializer_range", 0.02);
  parse_rope(fields, config);
  parse_window(fields, config);
  // Qwen's files name their tokens; SmolLM3 has Llama 3's, of which one pads.
  const bool qwen = is_qwen(config);
  const int64_t bos = nope ? 128000 : qwen ? -1 : 1;
  config.bos_token_id = parse_token(fields, "bos_token_id", bos);
  config.pad_token_id = parse_token(fields, "pad_token_id", nope ? 128004 : -1);
  config.eos_token_ids = fields.integers("eos_token_id");
  if (!fields.contains("eos_token_id") && !qwen) config.eos_token_ids = {bos + 1};
  std::erase(config.eos_token_ids, -1);  // which stands for none
  try {
    config.validate();
  } catch (const Error& error) {
    throw Error(error.kind(), where + ": " + error.what(), error.hint());
  }
  parse_unrotated(fields, config);
  return config;
}

std::string write_hf_config(const ModelConfig& config, const std::string& torch_dtype) {
  json out = {{"architectures", {config.architecture->name}},
              {"model_type", config.architecture->model_type},
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
  add_own_fields(config, out);
  // Version 4 reads the first two, version 5 the third; version 5 would also take the first two,
  // but newer tools look for the third alone.
  const json scaling = rope_json(config.rope_scaling);
  out["rope_theta"] = config.rope_theta;
  out["rope_scaling"] = scaling;
  out["rope_parameters"] = scaling.is_null() ? json{{"rope_type", "default"}} : scaling;
  out["rope_parameters"]["rope_theta"] = config.rope_theta;
  return dump_json(out) + "\n";
}

std::vector<int64_t> parse_end_tokens(const std::string& text) {
  const json config = generation_object(text);
  if (!config.contains("eos_token_id")) return {};
  const json& ends = config["eos_token_id"];
  std::vector<int64_t> ids;
  for (const json& id : ends.is_array() ? ends : json::array({ends})) {
    if (id.is_number_integer()) ids.push_back(id.get<int64_t>());
  }
  return ids;
}

std::optional<std::string> add_end_token(const std::string& text, int64_t id) {
  json config = generation_object(text);
  if (!config.is_object()) return std::nullopt;
  json& ends = config["eos_token_id"];
  if (ends.is_null()) {
    ends = id;
  } else {
    if (!ends.is_array()) ends = json::array({ends});
    if (std::find(ends.begin(), ends.end(), id) != ends.end()) return text;
    ends.push_back(id);
  }
  return dump_json(config) + "\n";
}

std::string set_untied(const std::string& config) {
  json root = parse_json(config, "config.json");
  root["tie_word_embeddings"] = false;
  return dump_json(root) + "\n";
}

std::string add_quantization_config(const std::string& config, const json& quantization) {
  json root = parse_json(config, "config.json");
  root["quantization_config"] = quantization;
  return dump_json(root) + "\n";
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
