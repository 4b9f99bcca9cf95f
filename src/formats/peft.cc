#include "formats/peft.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <set>
#include <utility>

#include "base/checked.h"
#include "base/error.h"
#include "base/half.h"
#include "formats/json_text.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

using nlohmann::json;

constexpr const char* kWeightsFile = "adapter_model.safetensors";
constexpr std::string_view kTensorPrefix = "base_model.model.";
constexpr std::string_view kSuffixA = ".lora_A.weight";
constexpr std::string_view kSuffixB = ".lora_B.weight";

// Settings that change what an adapter computes or which base weights it belongs to. They are at
// rest when absent, null, false, or empty.
constexpr std::array<const char*, 18> kRefused = {
    "use_dora",      "fan_in_fan_out",    "modules_to_save",         "rank_pattern",
    "alpha_pattern", "lora_bias",         "trainable_token_indices", "target_parameters",
    "use_qalora",    "layer_replication", "layers_to_transform",     "use_bdlora",
    "arrow_config",  "kasa_config",       "alora_invocation_tokens", "megatron_config",
    "velora_config", "monteclora_config"};

// Initialisations that also change the base weights; an adapter trained from them fits no others.
constexpr std::array<std::string_view, 5> kRefusedInit = {"pissa", "olora", "corda", "loftq",
                                                          "lora_ga"};

[[noreturn]] void unsupported(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", where, what),
              "supported: plain LoRA of linear layers, one rank, without biases");
}

bool at_rest(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

void check_supported(const json& root, const JsonFields& fields) {
  const std::string type = fields.text("peft_type");
  if (type != "LORA") unsupported(fields.where(), "peft_type " + type);
  const std::string bias = fields.text("bias", "none");
  if (bias != "none") unsupported(fields.where(), "bias " + bias);
  for (const char* key : kRefused) {
    if (root.contains(key) && !at_rest(root[key])) {
      unsupported(fields.where(), fmt::format("{} = {}", key, dump_json(root[key], -1)));
    }
  }
  const json* init = fields.find("init_lora_weights");
  if (init == nullptr || !init->is_string()) return;
  const std::string name = init->get<std::string>();
  for (const std::string_view refused : kRefusedInit) {
    if (name.starts_with(refused)) unsupported(fields.where(), "init_lora_weights " + name);
  }
}

PeftConfig parse_config(const std::string& text, const std::string& where) {
  const json root = parse_json(text, where);
  const JsonFields fields(root, where);
  check_supported(root, fields);
  PeftConfig config;
  config.r = fields.integer("r");
  config.lora_alpha = fields.number("lora_alpha");
  config.lora_dropout = fields.number("lora_dropout", 0.0);
  config.use_rslora = fields.boolean("use_rslora", false);
  config.base_model_name_or_path = fields.text("base_model_name_or_path", "");
  config.task_type = fields.text("task_type", "");
  if (config.r <= 0) fail(ErrorKind::model, "{}: r = {} is not a rank", where, config.r);
  if (!std::isfinite(config.lora_alpha))
    fail(ErrorKind::model, "{}: lora_alpha is not finite", where);
  if (!(config.lora_dropout >= 0.0 && config.lora_dropout < 1.0)) {
    fail(ErrorKind::model, "{}: lora_dropout = {} is not in [0, 1)", where, config.lora_dropout);
  }
  return config;
}

template <typename T>
void widen(std::span<const uint8_t> bytes, std::vector<float>& out) {
  out.resize(bytes.size() / sizeof(T));
  for (size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    out[i] = to_float(value);
  }
}

NamedArray read_array(const SafetensorsEntry& entry, int64_t rank, const std::string& where) {
  const bool is_a = entry.name.ends_with(kSuffixA);
  if (entry.name.size() <= kTensorPrefix.size() + kSuffixA.size() ||
      !entry.name.starts_with(kTensorPrefix) || (!is_a && !entry.name.ends_with(kSuffixB))) {
    unsupported(where, "tensor " + entry.name);
  }
  if (entry.shape.size() != 2 || entry.shape[is_a ? 0 : 1] != rank) {
    fail(ErrorKind::model, "{}: tensor {} of shape {} is not of rank {}", where, entry.name,
         shape_text(entry.shape), rank);
  }
  NamedArray out;
  out.name = entry.name.substr(kTensorPrefix.size());
  out.shape = entry.shape;
  if (entry.dtype == "F32") {
    widen<float>(entry.bytes, out.values);
  } else if (entry.dtype == "BF16") {
    widen<bf16>(entry.bytes, out.values);
  } else if (entry.dtype == "F16") {
    widen<f16>(entry.bytes, out.values);
  } else {
    unsupported(where, fmt::format("dtype {} of tensor {}", entry.dtype, entry.name));
  }
  return out;
}

std::string module_of(const std::string& name) {
  return name.substr(0, name.size() - kSuffixA.size());
}

void check_pairs(const std::vector<NamedArray>& tensors, const std::string& where) {
  std::set<std::string> names;
  for (const NamedArray& tensor : tensors) names.insert(tensor.name);
  for (const std::string& name : names) {
    for (const std::string_view suffix : {kSuffixA, kSuffixB}) {
      const std::string partner = module_of(name) + std::string(suffix);
      if (!names.contains(partner)) {
        fail(ErrorKind::model, "{}: tensor {} is there, {} is missing", where, name, partner);
      }
    }
  }
}

std::vector<std::string> modules_of(const std::vector<NamedArray>& tensors) {
  std::set<std::string> modules;
  for (const NamedArray& tensor : tensors) {
    const std::string module = module_of(tensor.name);
    modules.insert(module.substr(module.rfind('.') + 1));
  }
  return {modules.begin(), modules.end()};
}

std::string config_text(const PeftConfig& config) {
  const double alpha = config.lora_alpha;
  // PEFT declares alpha an integer; whole values are written as such.
  const bool whole = std::abs(alpha) < 1e9 && alpha == std::floor(alpha);
  std::vector<std::string> modules = config.target_modules;
  std::sort(modules.begin(), modules.end());
  json out = {{"peft_type", config.peft_type},
              {"task_type", config.task_type},
              {"base_model_name_or_path", config.base_model_name_or_path},
              {"r", config.r},
              {"lora_alpha", whole ? json(static_cast<int64_t>(alpha)) : json(alpha)},
              {"lora_dropout", config.lora_dropout},
              {"target_modules", modules},
              {"use_rslora", config.use_rslora},
              {"bias", "none"},
              {"fan_in_fan_out", false},
              {"use_dora", false},
              {"init_lora_weights", true},
              {"inference_mode", true},
              {"modules_to_save", nullptr},
              {"layers_to_transform", nullptr},
              {"layers_pattern", nullptr},
              {"rank_pattern", json::object()},
              {"alpha_pattern", json::object()},
              {"auto_mapping", nullptr},
              {"revision", nullptr}};
  for (const char* key : {"task_type", "base_model_name_or_path"}) {
    if (out[key] == json("")) out[key] = nullptr;
  }
  return dump_json(out) + "\n";
}

std::vector<SafetensorsSpec> specs_of(const std::vector<NamedShape>& tensors) {
  std::vector<SafetensorsSpec> specs;
  specs.reserve(tensors.size());
  for (const NamedShape& tensor : tensors) {
    specs.push_back({std::string(kTensorPrefix) + tensor.name, "F32", tensor.shape});
  }
  return specs;
}

}  // namespace

std::string peft_base_model(const fs::path& directory) {
  try {
    const json root = parse_json(read_text(directory / kAdapterConfig), kAdapterConfig);
    return JsonFields(root, kAdapterConfig).text("base_model_name_or_path", "");
  } catch (const Error&) {
    return {};
  }
}

PeftAdapter read_peft_adapter(const fs::path& directory) {
  PeftAdapter adapter;
  const fs::path config = directory / kAdapterConfig;
  const fs::path weights = directory / kWeightsFile;
  if (!fs::exists(directory)) {
    throw Error(ErrorKind::model, fmt::format("adapter {} does not exist", directory.string()),
                "check the path");
  }
  if (!fs::exists(config)) {
    throw Error(ErrorKind::model, fmt::format("{} has no {}", directory.string(), kAdapterConfig),
                "give the directory that PEFT's save_pretrained() wrote");
  }
  if (!fs::exists(weights)) {
    throw Error(ErrorKind::model, fmt::format("{} has no {}", directory.string(), kWeightsFile),
                "save the adapter again with safe_serialization=True");
  }
  adapter.config = parse_config(read_text(config), config.string());
  const SafetensorsFile file(weights);
  const std::string where = weights.string();
  for (const SafetensorsEntry& entry : file.entries()) {
    adapter.tensors.push_back(read_array(entry, adapter.config.r, where));
  }
  if (adapter.tensors.empty()) fail(ErrorKind::model, "{}: no tensors", where);
  std::sort(adapter.tensors.begin(), adapter.tensors.end(),
            [](const NamedArray& a, const NamedArray& b) { return a.name < b.name; });
  check_pairs(adapter.tensors, where);
  // The setting may be a pattern or name ends of paths, and another may except some.
  adapter.config.target_modules = modules_of(adapter.tensors);
  return adapter;
}

int64_t peft_bytes(const PeftConfig& config, const std::vector<NamedShape>& tensors) {
  return checked_add(std::ssize(config_text(config)), safetensors_bytes(specs_of(tensors)));
}

PeftWriter::PeftWriter(const fs::path& directory, const PeftConfig& config,
                       const std::vector<NamedShape>& tensors)
    : directory_(directory) {
  FileWriter text(path() / kAdapterConfig);
  text.write(config_text(config));
  text.close();
  writer_ = std::make_unique<SafetensorsWriter>(path() / kWeightsFile, specs_of(tensors));
}

void PeftWriter::write(std::string_view name, std::span<const float> values) {
  writer_->write(std::string(kTensorPrefix) + std::string(name),
                 {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
}

void PeftWriter::commit() {
  writer_->close();
  directory_.commit();
}

}  // namespace jackscrew
