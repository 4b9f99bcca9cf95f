// Names and patterns that choose modules by their paths ("model.layers.0.self_attn.q_proj"), as
// PEFT has them in adapter_config.json.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/regular_expression.h"

namespace jackscrew {

// Whether `name` is the path, or the end of it after a dot.
bool names_module(std::string_view name, std::string_view path);

// target_modules: names of modules, or one regular expression for whole paths.
class ModuleTargets {
 public:
  ModuleTargets() = default;
  // Throws Error(usage) for an invalid regular expression.
  static ModuleTargets from_names(std::vector<std::string> names);
  static ModuleTargets from_expression(const std::string& expression);

  bool contains(std::string_view path) const;
  const std::vector<std::string>& names() const { return names_; }  // none for an expression
  const std::string& expression() const { return expression_; }     // empty for names

 private:
  std::vector<std::string> names_;
  std::string expression_;
  std::optional<RegularExpression> compiled_;
};

// rank_pattern, alpha_pattern: numbers for modules whose paths are matched, whole or from behind a
// dot, by a regular expression. If several match, the first in the alphabetical order of the
// patterns counts, as in PEFT when it reads the files that it wrote.
class ModuleNumbers {
 public:
  ModuleNumbers() = default;
  // Throws Error(usage) for an invalid regular expression.
  explicit ModuleNumbers(const std::map<std::string, double>& numbers);

  std::optional<double> find(std::string_view path) const;
  const std::map<std::string, double>& numbers() const { return numbers_; }

 private:
  std::map<std::string, double> numbers_;
  std::vector<RegularExpression> compiled_;  // in the order of the map
};

}  // namespace jackscrew
