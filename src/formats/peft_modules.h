// Which modules PEFT gives an adapter, by the settings of adapter_config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <set>
#include <string>

#include "base/module_patterns.h"

namespace jackscrew {

class PeftModules {
 public:
  // `settings` has target_modules, exclude_modules, layers_to_transform and layers_pattern, as far
  // as the file does. What is not understood leaves nothing out.
  explicit PeftModules(const nlohmann::ordered_json& settings);

  // The setting by which PEFT leaves a module without an adapter, and drops the tensors of one;
  // null: none. `path` is "model.layers.0.self_attn.q_proj" or the like. Throws Error(usage) for an
  // expression that takes too long to match.
  const char* left_out_by(const std::string& path) const;

 private:
  std::optional<ModuleTargets> targets_, excluded_;
  std::set<int64_t> layers_;  // empty: all
};

}  // namespace jackscrew
