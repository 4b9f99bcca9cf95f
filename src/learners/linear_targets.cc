#include "learners/linear_targets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "base/error.h"

namespace jackscrew {

namespace {

constexpr std::array<const char*, 7> kLinearModules = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                       "gate_proj", "up_proj", "down_proj"};

bool is_all(const std::string& target) {
  return target == "all-linear" || target == "all";
}

// Letters, digits, underscores and dots are a name or the end of a path; all else is an expression.
bool is_expression(const std::string& target) {
  return target.find_first_of("*+?()[]{}|^$\\") != std::string::npos;
}

}  // namespace

std::string linear_module_names() {
  return fmt::format("{}", fmt::join(kLinearModules, ", "));
}

ModuleTargets linear_targets(const OptionSet& options, const char* name) {
  const std::vector<std::string>& given = options.list(name);
  if (given.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{} names no module", name),
                fmt::format("use {}=all-linear", name));
  }
  if (std::any_of(given.begin(), given.end(), is_all)) {
    return ModuleTargets::from_names({kLinearModules.begin(), kLinearModules.end()});
  }
  // A comma may be part of an expression, so the text is taken whole.
  const std::string& text = options.text(name);
  if (is_expression(text)) return ModuleTargets::from_expression(text);
  for (const std::string& target : given) {
    const bool is_module =
        std::find(kLinearModules.begin(), kLinearModules.end(), target) != kLinearModules.end();
    if (is_module || target.find('.') != std::string::npos) continue;
    throw Error(ErrorKind::usage, fmt::format("{}={} is not a linear module", name, target),
                "modules: " + linear_module_names());
  }
  return ModuleTargets::from_names(given);
}

}  // namespace jackscrew
