#include "formats/peft_lora.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <set>

#include "base/error.h"
#include "formats/json_text.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

using nlohmann::json;

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

[[noreturn]] void lora_unsupported(const std::string& where, const std::string& what) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", where, what),
              "supported: plain LoRA of linear layers, one rank, without biases");
}

bool at_rest(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

void check_supported(const json& config, const JsonFields& fields) {
  const std::string bias = fields.text("bias", "none");
  if (bias != "none") lora_unsupported(fields.where(), "bias " + bias);
  for (const char* key : kRefused) {
    if (config.contains(key) && !at_rest(config[key])) {
      lora_unsupported(fields.where(), fmt::format("{} = {}", key, dump_json(config[key], -1)));
    }
  }
  const json* init = fields.find("init_lora_weights");
  if (init == nullptr || !init->is_string()) return;
  const std::string name = init->get<std::string>();
  for (const std::string_view refused : kRefusedInit) {
    if (name.starts_with(refused)) lora_unsupported(fields.where(), "init_lora_weights " + name);
  }
}

void read_lora_settings(const json& config, const std::string& where, PeftAdapter& adapter) {
  const JsonFields fields(config, where);
  check_supported(config, fields);
  const int64_t rank = fields.integer("r");
  const double alpha = fields.number("lora_alpha");
  const double dropout = fields.number("lora_dropout", 0.0);
  if (rank <= 0) fail(ErrorKind::model, "{}: r = {} is not a rank", where, rank);
  if (!std::isfinite(alpha)) fail(ErrorKind::model, "{}: lora_alpha is not finite", where);
  if (!(dropout >= 0.0 && dropout < 1.0)) {
    fail(ErrorKind::model, "{}: lora_dropout = {} is not in [0, 1)", where, dropout);
  }
  adapter.settings = {{"r", rank},
                      {"lora_alpha", alpha},
                      {"lora_dropout", dropout},
                      {"use_rslora", fields.boolean("use_rslora", false)}};
}

std::string module_of(const std::string& name) {
  return name.substr(0, name.size() - kSuffixA.size());
}

void check_factor(const NamedArray& tensor, int64_t rank, const std::string& where) {
  const bool is_a = tensor.name.ends_with(kSuffixA);
  const std::string name = std::string(kAdapterPrefix) + tensor.name;
  if (tensor.name.size() <= kSuffixA.size() || (!is_a && !tensor.name.ends_with(kSuffixB))) {
    lora_unsupported(where, "tensor " + name);
  }
  if (tensor.shape.size() != 2 || tensor.shape[is_a ? 0 : 1] != rank) {
    fail(ErrorKind::model, "{}: tensor {} of shape {} is not of rank {}", where, name,
         shape_text(tensor.shape), rank);
  }
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

void read_lora_tensors(const std::string& where, PeftAdapter& adapter) {
  const auto rank = adapter.settings["r"].get<int64_t>();
  for (const NamedArray& tensor : adapter.tensors) check_factor(tensor, rank, where);
  check_pairs(adapter.tensors, where);
  for (const NamedArray& tensor : adapter.tensors) {
    if (adapter.misplaced.empty() && !tensor.name.starts_with("model.layers.")) {
      adapter.misplaced = tensor.name;
    }
  }
  // The setting may be a pattern or name ends of paths, and another may except some.
  const std::vector<std::string> modules = modules_of(adapter.tensors);
  adapter.settings["target_modules"] = modules;
  adapter.options = {
      {"lora_rank", std::to_string(rank)},
      {"lora_alpha", fmt::format("{}", adapter.settings["lora_alpha"].get<double>()), {"auto"}},
      {"use_rslora", adapter.settings["use_rslora"].get<bool>() ? "true" : "false"},
      {"lora_target", fmt::format("{}", fmt::join(modules, ",")), {"all-linear", "all"}},
      {"lora_dropout", fmt::format("{}", adapter.settings["lora_dropout"].get<double>()), {}, true},
  };
}

}  // namespace

const PeftType kPeftLora{"LORA", "lora", read_lora_settings, read_lora_tensors};

}  // namespace jackscrew
