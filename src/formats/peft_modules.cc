#include "formats/peft_modules.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

namespace {

using nlohmann::ordered_json;

constexpr std::string_view kLayerPrefix = "model.layers.";
constexpr const char* kAllLinear = "all-linear";

bool is_list_of_text(const ordered_json& value) {
  return value.is_array() && !value.empty() &&
         std::ranges::all_of(value, [](const ordered_json& item) { return item.is_string(); });
}

// Names or an expression; nullopt for what selects no modules by itself, or cannot be read here.
std::optional<ModuleTargets> selection_of(const ordered_json& settings, const char* key) {
  const ordered_json value = settings.value(key, ordered_json());
  if (is_list_of_text(value)) {
    return ModuleTargets::from_names(value.get<std::vector<std::string>>());
  }
  if (!value.is_string() || value == kAllLinear || value == "") return std::nullopt;
  try {
    return ModuleTargets::from_expression(value.get<std::string>());
  } catch (const Error&) {
    return std::nullopt;
  }
}

// Whether layers_to_transform counts the layers of our models: PEFT counts all that
// layers_pattern, if given, is the name of.
bool counts_layers(const ordered_json& settings) {
  const ordered_json pattern = settings.value("layers_pattern", ordered_json());
  return pattern.is_null() || pattern.empty() || pattern == "" || pattern == "layers" ||
         pattern == ordered_json::array({"layers"});
}

std::set<int64_t> layers_of(const ordered_json& settings) {
  const ordered_json value = settings.value("layers_to_transform", ordered_json());
  if (!counts_layers(settings)) return {};
  std::set<int64_t> layers;
  for (const ordered_json& layer : value.is_array() ? value : ordered_json::array({value})) {
    if (!layer.is_number_integer()) return {};
    layers.insert(layer.get<int64_t>());
  }
  return layers;
}

}  // namespace

PeftModules::PeftModules(const ordered_json& settings)
    : targets_(selection_of(settings, "target_modules")),
      excluded_(selection_of(settings, "exclude_modules")),
      layers_(layers_of(settings)) {}

const char* PeftModules::left_out_by(const std::string& path) const {
  if (excluded_ && excluded_->contains(path)) return "exclude_modules";
  if (targets_ && !targets_->contains(path)) return "target_modules";
  if (layers_.empty() || !path.starts_with(kLayerPrefix)) return nullptr;
  const auto layer = parse_int(
      path.substr(kLayerPrefix.size(), path.find('.', kLayerPrefix.size()) - kLayerPrefix.size()));
  return layer && !layers_.contains(*layer) ? "layers_to_transform" : nullptr;
}

}  // namespace jackscrew
