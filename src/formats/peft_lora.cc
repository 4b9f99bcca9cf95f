#include "formats/peft_lora.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "base/error.h"
#include "base/module_patterns.h"
#include "base/text.h"
#include "formats/peft_modules.h"
#include "formats/peft_whole.h"
#include "formats/shape.h"

namespace jackscrew {

namespace {

using nlohmann::json;
using nlohmann::ordered_json;

// The tensors of a module: A [rank, in], B [out, rank] and, with DoRA, lengths [out].
constexpr std::array<std::string_view, 3> kParts = {".lora_A.weight", ".lora_B.weight",
                                                    ".lora_magnitude_vector"};
constexpr std::string_view kLayers = "model.layers.";
// Above any rank of a tensor that fits in memory.
constexpr int32_t kMostRank = std::numeric_limits<int32_t>::max();
// PEFT's r and lora_alpha where a file has none.
constexpr int64_t kDefaultRank = 8;
constexpr double kDefaultAlpha = 8.0;

// Settings that change what an adapter computes or which base weights it belongs to, and are
// refused unless absent, null, false, or empty.
constexpr const char* kRefused[] = {"fan_in_fan_out",
                                    "lora_bias",
                                    "target_parameters",
                                    "use_qalora",
                                    "trainable_token_indices",
                                    "layer_replication",
                                    "use_bdlora",
                                    "arrow_config",
                                    "kasa_config",
                                    "megatron_config",
                                    "velora_config",
                                    "alora_invocation_tokens",
                                    "monteclora_config"};

// Those of them that are settings of their own: PEFT turns on what they are of even if they are {}.
constexpr std::array<std::string_view, 5> kSubconfigs = {
    "use_bdlora", "arrow_config", "kasa_config", "velora_config", "monteclora_config"};

// Those of kRefused that PEFT cannot merge.
constexpr std::array<std::string_view, 5> kUnmerged = {
    "lora_bias", "layer_replication", "alora_invocation_tokens", "use_qalora", "arrow_config"};

// Initialisations that also change the base weights; their adapters fit no others.
constexpr std::array<std::string_view, 5> kRefusedInit = {"pissa", "olora", "corda", "loftq",
                                                          "lora_ga"};
// One whose saved adapter is of weights that PEFT does not make again.
constexpr std::string_view kIteratedPissa = "pissa_niter";

// What else makes a model of an adapter, as the end of a hint.
constexpr const char* kMergeInPeft = "; PEFT's merge_and_unload() makes a model of such an adapter";
constexpr const char* kMergeUntiedInPeft =
    "; PEFT's merge_and_unload() makes a model of such an adapter of an untied model";
constexpr const char* kNoMerge = "";  // PEFT refuses to, or makes another model

[[noreturn]] void lora_unsupported(const std::string& where, const std::string& what,
                                   const char* instead) {
  throw Error(ErrorKind::model, fmt::format("{}: {} is not supported", where, what),
              fmt::format("supported: LoRA and DoRA of the blocks' linear layers, without biases{}",
                          instead));
}

bool at_rest(const json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

void check_supported(const JsonFields& fields) {
  const std::string bias = fields.text("bias", "none");
  if (bias != "none") lora_unsupported(fields.where(), "bias " + bias, kMergeInPeft);
  for (const char* key : kRefused) {
    const json* value = fields.find(key);
    if (value == nullptr) continue;
    const bool is_on = value->is_object() &&
                       std::ranges::find(kSubconfigs, std::string_view(key)) != kSubconfigs.end();
    if (is_on || !at_rest(*value)) {
      const bool merges = std::ranges::find(kUnmerged, std::string_view(key)) == kUnmerged.end();
      lora_unsupported(fields.where(), fmt::format("{} = {}", key, dump_json(*value, -1)),
                       merges ? kMergeInPeft : kNoMerge);
    }
  }
  const json* init = fields.find("init_lora_weights");
  if (init == nullptr || !init->is_string()) return;
  const std::string name = init->get<std::string>();
  const std::string lowered = lower_case(name);  // PEFT takes "OLoRA" as well
  for (const std::string_view refused : kRefusedInit) {
    if (!lowered.starts_with(refused)) continue;
    lora_unsupported(fields.where(), "init_lora_weights " + name,
                     lowered.starts_with(kIteratedPissa) ? kNoMerge : kMergeInPeft);
  }
}

ModuleNumbers module_numbers(const ordered_json& numbers) {
  return ModuleNumbers(numbers.get<std::map<std::string, double>>());
}

// Reads rank_pattern (`ranks`) or alpha_pattern, in the file's order. Throws Error(model) where it
// is invalid.
ordered_json numbers_of(const ordered_json& config, const JsonFields& fields, const char* key,
                        bool ranks) {
  ordered_json numbers = ordered_json::object();
  if (!fields.has(key)) return numbers;
  for (const auto& [pattern, value] : config[key].items()) {
    const double number = value.is_number() ? value.get<double>() : -1.0;
    const bool valid = ranks ? value.is_number_integer() && number >= 1.0 && number <= kMostRank
                             : value.is_number() && std::isfinite(number);
    if (!valid) {
      fail(ErrorKind::model, "{}: {} has {} for {}", fields.where(), key, dump_json(value, -1),
           pattern);
    }
    numbers[pattern] = number;
  }
  try {
    static_cast<void>(module_numbers(numbers));  // compiles the expressions
  } catch (const Error& error) {
    fail(ErrorKind::model, "{}: {}: {}", fields.where(), key, error.what());
  }
  return numbers;
}

// The modules of modules_to_save, each by the last part of its path. Throws Error(model) for
// modules that cannot be trained as a whole beside adapters.
std::vector<std::string> saved_modules(const JsonFields& fields) {
  std::vector<std::string> modules;
  for (const std::string& name : fields.texts("modules_to_save")) {
    const std::string module = name.substr(name.rfind('.') + 1);
    if (module != kSavedEmbedding.module && module != kSavedHead.module) {
      lora_unsupported(fields.where(), "modules_to_save with " + name, kMergeInPeft);
    }
    // PEFT names a tied embedding twice: by its name, and by its path.
    if (std::ranges::find(modules, module) == modules.end()) modules.push_back(module);
  }
  return modules;
}

void read_lora_settings(const JsonFields& fields, const ordered_json& in_order,
                        PeftAdapter& adapter) {
  const std::string& where = fields.where();
  check_supported(fields);
  // PEFT does not take null for the default.
  const int64_t rank = fields.contains("r") ? fields.integer("r") : kDefaultRank;
  const double alpha = fields.contains("lora_alpha") ? fields.number("lora_alpha") : kDefaultAlpha;
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
  if (fields.boolean("use_dora", false)) adapter.settings["use_dora"] = true;
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    const ordered_json numbers =
        numbers_of(in_order, fields, key, key == std::string_view("rank_pattern"));
    if (!numbers.empty()) adapter.settings[key] = numbers;
  }
  if (const auto modules = saved_modules(fields); !modules.empty()) {
    adapter.settings["modules_to_save"] = modules;
    if (fields.boolean("ensure_weight_tying", false))
      adapter.settings["ensure_weight_tying"] = true;
  }
  for (const char* key : {"layers_to_transform", "layers_pattern", "exclude_modules"}) {
    const json* value = fields.find(key);
    if (value && !at_rest(*value)) adapter.settings[key] = *value;
  }
  if (const json* targets = fields.find("target_modules")) {
    adapter.settings["target_modules"] = *targets;
  }
  const json* init = fields.find("init_lora_weights");
  if (init != nullptr && *init == "mica") adapter.trains_in_part = "init_lora_weights mica";
}

// Whether a tensor is called as in PEFT's memory, where several adapters may be:
// "...q_proj.lora_A.default.weight".
bool has_name_of_adapter(const std::string& tensor) {
  const auto has = [&](const char* part) { return tensor.find(part) != std::string::npos; };
  return tensor.ends_with(".weight") &&
         (has(".lora_A.") || has(".lora_B.") || has(".lora_magnitude_vector."));
}

// The tensors of each module, by its path.
using LoraModules = std::map<std::string, std::array<const PeftTensor*, kParts.size()>>;

LoraModules modules_of(const PeftAdapter& adapter, size_t parts_of_each, const std::string& where) {
  LoraModules modules;
  for (const PeftTensor& tensor : adapter.tensors) {
    if (is_saved(tensor.name)) continue;
    size_t part = 0;
    while (part < kParts.size() && !tensor.name.ends_with(kParts[part])) ++part;
    if (part == kParts.size()) {
      for (const SavedModule& saved : kSaved) {
        if (!tensor.name.starts_with(fmt::format("{}.", saved.path))) continue;
        lora_unsupported(where, fmt::format("an adapter of {}", saved.module), kMergeUntiedInPeft);
      }
      if (has_name_of_adapter(tensor.name)) {
        throw Error(
            ErrorKind::model,
            fmt::format("{}: tensor {}{} is not supported", where, kAdapterPrefix, tensor.name),
            "it has the adapter's name in its own: save the adapter by save_pretrained()");
      }
    }
    if (part >= parts_of_each || tensor.name.size() == kParts[part].size()) {
      lora_unsupported(where, fmt::format("tensor {}{}", kAdapterPrefix, tensor.name), kNoMerge);
    }
    modules[tensor.name.substr(0, tensor.name.size() - kParts[part].size())][part] = &tensor;
  }
  return modules;
}

void check_shapes(const LoraModules& modules, int64_t rank, const ModuleNumbers& ranks,
                  const std::string& where) {
  for (const auto& [path, parts] : modules) {
    const auto own = static_cast<int64_t>(ranks.find(path).value_or(static_cast<double>(rank)));
    for (size_t part = 0; part < kParts.size(); ++part) {
      if (parts[part] == nullptr) continue;
      const std::vector<int64_t>& shape = parts[part]->shape;
      const bool fits =
          part == 2 ? parts[1] == nullptr || shape == std::vector<int64_t>{parts[1]->shape[0]}
                    : shape.size() == 2 && shape[part] == own;
      if (fits) continue;
      fail(ErrorKind::model, "{}: tensor {}{} of shape {} is not of rank {}", where, kAdapterPrefix,
           parts[part]->name, shape_text(shape), own);
    }
  }
}

void check_complete(const LoraModules& modules, size_t parts_of_each, const std::string& where) {
  for (const auto& [path, parts] : modules) {
    for (size_t part = 0; part < parts_of_each; ++part) {
      if (parts[part] != nullptr) continue;
      fail(ErrorKind::model, "{}: tensor {}{} is missing", where, path, kParts[part]);
    }
  }
}

// Whether names, ends of paths or an expression match a module whatever its layer's number: they
// have no digit, and an expression nothing that could match one but `.*`.
bool match_any_layer(const ordered_json& modules) {
  if (modules.is_null()) return true;
  const auto has = [](const std::string& text, const char* characters) {
    return text.find_first_of(characters) != std::string::npos;
  };
  if (modules.is_string()) {
    auto rest = modules.get<std::string>();
    for (const std::string_view harmless : {".*", "\\."}) {
      for (size_t at; (at = rest.find(harmless)) != std::string::npos;) {
        rest.erase(at, harmless.size());
      }
    }
    return !has(rest, "0123456789.*+?[]{}\\^$");
  }
  return std::none_of(modules.begin(), modules.end(), [&](const auto& name) {
    return name.is_string() && has(name.template get<std::string>(), "0123456789");
  });
}

// Whether these settings select the same modules in every layer that a model may have.
bool in_every_layer(const ordered_json& settings) {
  const auto matches = [&](const char* key) {
    return !settings.contains(key) || match_any_layer(settings[key]);
  };
  return !settings.contains("layers_to_transform") && matches("target_modules") &&
         matches("exclude_modules");
}

// A lora_target that selects the adapted modules: their names if every layer has the same ones
// adapted, else all paths. How many layers the model has is not known here: `in_every_layer` says
// that there are no more than those adapted.
std::vector<std::string> targets_of(const LoraModules& adapted, bool in_every_layer) {
  std::set<std::string> paths, layers, modules;
  for (const auto& [path, parts] : adapted) {
    paths.insert(path);
    modules.insert(path.substr(path.rfind('.') + 1));
    layers.insert(path.substr(0, path.find('.', kLayers.size())));
  }
  // Layers must count from 0 without gaps, or names of modules would select layers in the gaps too.
  bool all = in_every_layer;
  for (size_t i = 0; i < layers.size(); ++i) {
    all = all && layers.contains(fmt::format("{}{}", kLayers, i));
  }
  const bool everywhere = paths.size() == layers.size() * modules.size();
  const std::set<std::string>& targets = all && everywhere ? modules : paths;
  return {targets.begin(), targets.end()};
}

// The patterns that match some adapted module, as items of an option. A run refuses any others.
std::vector<std::string> items_of(const ModuleNumbers& numbers, const LoraModules& modules) {
  std::vector<std::string> items;
  for (const auto& [pattern, number] : numbers.numbers()) {
    const ModuleNumbers one({{pattern, number}});
    const bool used = std::any_of(modules.begin(), modules.end(), [&](const auto& module) {
      return one.find(module.first).has_value();
    });
    if (used) items.push_back(fmt::format("{}={}", pattern, number));
  }
  return items;
}

// Of several patterns that match a module PEFT takes the first of the file, while all here take the
// first in alphabetical order. Throws Error(model) where that is another number.
void check_order(const ordered_json& settings, const char* key, const LoraModules& modules,
                 const std::string& where) {
  if (!settings.contains(key)) return;
  std::vector<std::pair<std::string, ModuleNumbers>> patterns;
  for (const auto& [pattern, number] : settings[key].items()) {
    patterns.emplace_back(pattern, ModuleNumbers({{pattern, number.get<double>()}}));
  }
  for (const auto& [path, parts] : modules) {
    std::vector<std::string> matching;
    for (const auto& [pattern, one] : patterns) {
      if (one.find(path)) matching.push_back(pattern);
    }
    if (matching.empty()) continue;
    const std::string& first = matching.front();
    const std::string& sorted_first = *std::ranges::min_element(matching);
    if (settings[key][first] == settings[key][sorted_first]) continue;
    throw Error(ErrorKind::model,
                fmt::format("{}: {}: {} and {} both match {}, and are not in alphabetical order",
                            fs::path(where).replace_filename(kAdapterConfig).string(), key, first,
                            sorted_first, path),
                "PEFT takes the first of them; write patterns whose order does not matter");
  }
}

// A warning for modules that target_modules selects and that have no tensors, while the same ones
// of other layers have some; empty: there are none, or it cannot be told.
std::string lack_of_tensors(const ordered_json& settings, const PeftModules& in_peft,
                            const std::set<std::string>& paths, int64_t layers,
                            const std::string& where) {
  const auto value = [&](const char* key) { return settings.value(key, ordered_json()); };
  const bool is_clear = value("target_modules").is_array() &&
                        !value("exclude_modules").is_string() && value("layers_pattern").is_null();
  if (!is_clear) return {};
  std::set<std::string> ends;
  for (const std::string& path : paths) {
    const size_t end = path.find('.', kLayers.size());
    if (!path.starts_with(kLayers) || end == std::string::npos) return {};
    ends.insert(path.substr(end));
  }
  std::vector<std::string> lacking;
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const std::string& end : ends) {
      const std::string path = fmt::format("{}{}{}", kLayers, layer, end);
      if (!paths.contains(path) && in_peft.left_out_by(path) == nullptr) lacking.push_back(path);
    }
  }
  if (lacking.empty()) return {};
  return fmt::format(
      "{}: target_modules selects {} without tensors, first {}: nothing is added "
      "there, and the file may be incomplete",
      where, counted(std::ssize(lacking), "module"), lacking.front());
}

// A warning for the first module whose tensors PEFT would drop, or for modules that lack them;
// empty: there is none, or it takes too long to find.
std::string contradiction_of(const ordered_json& settings, const std::set<std::string>& paths,
                             int64_t layers, const std::string& where) try {
  const PeftModules in_peft(settings);
  const std::string config = fs::path(where).replace_filename(kAdapterConfig).string();
  for (const std::string& path : paths) {
    const char* setting = in_peft.left_out_by(path);
    if (setting == nullptr) continue;
    return fmt::format(
        "{}: {} leaves out {}, which has tensors: they count here, while PEFT drops them", config,
        setting, path);
  }
  return lack_of_tensors(settings, in_peft, paths, layers, config);
} catch (const Error&) {
  return {};
}

// Whether an expression is of whole paths and matches all of these.
bool matches_all(const std::string& expression, const std::set<std::string>& paths) {
  try {
    const RegularExpression compiled(expression);
    return std::ranges::all_of(paths,
                               [&](const std::string& path) { return compiled.is_whole(path); });
  } catch (const Error&) {
    return false;
  }
}

void read_lora_tensors(const std::string& where, PeftAdapter& adapter) {
  ordered_json& settings = adapter.settings;
  const auto rank = settings["r"].get<int64_t>();
  const auto numbers = [&](const char* key) {
    return module_numbers(settings.value(key, ordered_json::object()));
  };
  const ModuleNumbers ranks = numbers("rank_pattern");
  const WholeModules whole = take_whole(
      settings.value("modules_to_save", ordered_json::array()).get<std::vector<std::string>>(),
      settings.contains("ensure_weight_tying"), where, adapter.tensors);
  if (!whole.names.empty()) {
    settings["modules_to_save"] = whole.names;
    if (whole.tied) {
      settings["ensure_weight_tying"] = true;
    } else {
      settings.erase("ensure_weight_tying");
    }
  }
  adapter.repeated_head = whole.repeated_head;
  adapter.unties_embedding = !whole.names.empty() && !whole.tied;
  const size_t parts = settings.contains("use_dora") ? 3 : 2;
  const LoraModules modules = modules_of(adapter, parts, where);
  if (modules.empty()) {
    lora_unsupported(where,
                     fmt::format("an adapter of nothing but {}", fmt::join(whole.names, ", ")),
                     kMergeInPeft);
  }
  for (const char* key : {"rank_pattern", "alpha_pattern"}) {
    check_order(settings, key, modules, where);
  }
  check_shapes(modules, rank, ranks, where);
  check_complete(modules, parts, where);
  for (const PeftTensor& tensor : adapter.tensors) {
    if (adapter.unplaceable_tensor.empty() && !tensor.name.starts_with(kLayers) &&
        !is_saved(tensor.name)) {
      adapter.unplaceable_tensor = tensor.name;
    }
  }
  std::set<std::string> paths;
  for (const auto& [path, tensors] : modules) paths.insert(path);
  adapter.contradiction = [of_file = settings, paths, where](int64_t layers) {
    return contradiction_of(of_file, paths, layers, where);
  };
  // target_modules may be an expression or ends of paths, and another setting may exclude some
  // modules: the tensors tell the targets. A recipe may give these or the expression.
  const std::vector<std::string> targets = targets_of(modules, in_every_layer(settings));
  std::vector<std::string> accepted_instead = {"all-linear", "all"};
  if (const auto& given = settings["target_modules"]; given.is_string()) {
    accepted_instead.push_back(given.get<std::string>());
  }
  settings["target_modules"] = targets;
  // PiSSA's adapters have what they began with beside what was learned: the recipe of the run that
  // made one has other ranks and alphas.
  const auto began_otherwise = [](const std::string&, const OptionSet& recipe) {
    return recipe.text("lora_init") == "pissa";
  };
  adapter.options = {
      {.name = "lora_rank", .value = std::to_string(rank), .accepts = began_otherwise},
      {.name = "lora_alpha",
       .value = fmt::format("{}", settings["lora_alpha"].get<double>()),
       .accepted_instead = {"auto"},
       .accepts = began_otherwise},
      {.name = "use_rslora", .value = settings["use_rslora"].get<bool>() ? "true" : "false"},
      {.name = "use_dora", .value = settings.contains("use_dora") ? "true" : "false"},
      // The recipe of the run that made the adapter may have an expression, which its file has not.
      {.name = "lora_target",
       .items = targets,
       .accepted_instead = accepted_instead,
       .accepts = [paths](const std::string& given,
                          const OptionSet&) { return matches_all(given, paths); }},
      {.name = "rank_pattern", .items = items_of(ranks, modules), .accepts = began_otherwise},
      {.name = "alpha_pattern",
       .items = items_of(numbers("alpha_pattern"), modules),
       .accepts = began_otherwise},
      {.name = "modules_to_save", .items = whole.names},
      // An adapter that is loaded is not initialised again; this is to be remembered. It comes
      // after those that ask how the adapter began.
      {.name = "lora_init",
       .value = adapter.base_storage.empty() ? "default" : "loftq",
       .accepts_any = true},
      {.name = "lora_original_model", .accepts_any = true},
      {.name = "lora_dropout",
       .value = fmt::format("{}", settings["lora_dropout"].get<double>()),
       .training_only = true},
  };
}

}  // namespace

const PeftType kPeftLora{"LORA", "lora", kAdapterPrefix, read_lora_settings, read_lora_tensors};

}  // namespace jackscrew
