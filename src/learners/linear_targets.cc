#include "learners/linear_targets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

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

// "q_proj, k_proj, ...": for hints.
std::string linear_module_names() {
  return fmt::format("{}", fmt::join(kLinearModules, ", "));
}

}  // namespace

ModuleTargets linear_targets(const OptionSet& options, const char* name) {
  const std::vector<std::string>& given = options.list(name);
  if (given.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{} names no module", name),
                fmt::format("use {}=all-linear", name));
  }
  const bool has_all = std::any_of(given.begin(), given.end(), is_all);
  // A comma may be part of an expression, so the text is taken whole.
  const std::string& text = options.text(name);
  if (is_expression(text)) {
    if (!has_all) return ModuleTargets::from_expression(text);
    throw Error(ErrorKind::usage, fmt::format("{}={} has an expression among names", name, text),
                "all-linear has all modules by itself; an expression stands alone");
  }
  std::vector<std::string> names;
  if (has_all) names.assign(kLinearModules.begin(), kLinearModules.end());
  for (const std::string& target : given) {
    const bool is_module =
        std::find(kLinearModules.begin(), kLinearModules.end(), target) != kLinearModules.end();
    if (is_all(target) || (has_all && is_module)) continue;
    if (!is_module && target.find('.') == std::string::npos) {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: {} is not a linear layer of the model's blocks", name, target),
                  "their modules: " + linear_module_names());
    }
    names.push_back(target);
  }
  return ModuleTargets::from_names(std::move(names));
}

void check_targets_exist(const ModuleTargets& targets, const char* name,
                         const std::set<std::string>& linears) {
  const auto refuse = [&](const std::string& target) {
    const std::string of_expression =
        R"(an expression is for whole paths, as .*\.(q|v)_proj is, and several are joined by |; )";
    throw Error(ErrorKind::usage,
                fmt::format("{}: {} is not a linear layer of the model's blocks", name, target),
                fmt::format("{}their modules: {}; jackscrew inspect shows the paths",
                            targets.names().empty() ? of_expression : "", linear_module_names()));
  };
  for (const std::string& target : targets.names()) {
    const bool is_path = target.find('.') != std::string::npos;  // else one of kLinearModules
    const auto names = [&](const std::string& path) { return names_module(target, path); };
    if (is_path && std::ranges::none_of(linears, names)) refuse(target);
  }
  const auto matches = [&](const std::string& path) { return targets.contains(path); };
  if (std::ranges::any_of(linears, matches)) return;
  refuse(targets.names().empty() ? targets.expression()
                                 : fmt::format("{}", fmt::join(targets.names(), ", ")));
}

}  // namespace jackscrew
