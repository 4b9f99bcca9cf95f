#include "base/module_patterns.h"

#include <algorithm>
#include <utility>

namespace jackscrew {

bool names_module(std::string_view name, std::string_view path) {
  if (!path.ends_with(name)) return false;
  return path.size() == name.size() || path[path.size() - name.size() - 1] == '.';
}

ModuleTargets ModuleTargets::from_names(std::vector<std::string> names) {
  ModuleTargets targets;
  targets.names_ = std::move(names);
  return targets;
}

ModuleTargets ModuleTargets::from_expression(const std::string& expression) {
  ModuleTargets targets;
  targets.expression_ = expression;
  targets.compiled_.emplace(expression);
  return targets;
}

bool ModuleTargets::contains(std::string_view path) const {
  if (compiled_) return compiled_->is_whole(path);
  return std::any_of(names_.begin(), names_.end(),
                     [&](const std::string& name) { return names_module(name, path); });
}

ModuleNumbers::ModuleNumbers(const std::map<std::string, double>& numbers) : numbers_(numbers) {
  for (const auto& [pattern, number] : numbers_) {
    static_cast<void>(RegularExpression(pattern));        // by itself, for the message
    compiled_.emplace_back("(.*\\.)?(" + pattern + ")");  // as PEFT, whose groups count, too
  }
}

std::optional<double> ModuleNumbers::find(std::string_view path) const {
  size_t at = 0;
  for (const auto& [pattern, number] : numbers_) {
    if (compiled_[at++].is_whole(path)) return number;
  }
  return std::nullopt;
}

}  // namespace jackscrew
