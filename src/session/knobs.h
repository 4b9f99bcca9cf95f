// Settings that reduce the memory of a training run, what each of them costs, and the run with some
// of them changed.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "session/plan.h"

namespace jackscrew {

// A knob is one choice that saves memory: it is left as the recipe has it, or set to one of its
// positions.
struct Position {
  std::string settings;  // "name=value name=value", as they would be given
  std::string remark;    // what it costs
  double cost = 1.0;     // factor by which training takes longer; it only ranks positions
};
struct Knob {
  std::string unturned;             // settings that leave the knob alone where the recipe says auto
  std::vector<Position> positions;  // each takes less memory than the one before
};

// The knobs of a recipe, the preferred ones first: those that leave the result as it is, then those
// of storage and of the learner in use.
std::vector<Knob> knobs_of(const Recipe& recipe, const ModelFiles& files);

// Methods that take less memory but change what the run trains, the one that learns most first.
std::vector<Position> other_methods(const Recipe& recipe, const ModelFiles& files);

// One position of every knob, or the knob left as it is.
struct Choice {
  std::string settings;
  double cost;
};
// Every combination of the knobs, the cheapest first.
std::vector<Choice> combinations(const std::vector<Knob>& knobs);
// The cheapest first, equal ones in the order they have.
void sort_by_cost(std::vector<Choice>& choices);

// Both settings in one line; either may be empty.
std::string join_settings(const std::string& first, const std::string& last);

// The settings without those that a later one of the same name replaces.
std::string last_of_each(const std::string& settings);

// The recipe with some settings changed. Throws Error(usage) where they contradict others.
Recipe with_settings(const Recipe& recipe, std::string_view settings);

// What make() returns; nullopt where it throws Error(usage).
template <class Make>
auto unless_refused(const Make& make) -> std::optional<decltype(make())> {
  try {
    return make();
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::usage) return std::nullopt;
    throw;
  }
}

// A run with some settings changed.
struct ChangedRun {
  Recipe recipe;
  SessionPlan plan;
};
// nullopt where the settings contradict others, or the model (a storage that cannot be trained).
// `place` is the part of a training run that is rehearsed; nullopt: the whole of it, on one rank.
std::optional<ChangedRun> rehearse_with(const Recipe& recipe, const ModelFiles& files,
                                        std::string_view settings,
                                        const std::optional<Place>& place = std::nullopt);
// The plan of any use, which the settings leave as it is; nullopt as there.
std::optional<SessionPlan> rehearse_use_with(const Recipe& recipe, const ModelFiles& files,
                                             std::string_view settings, const SessionUse& use);

// Returns find(recipe), a std::optional of something with `settings`. If that is empty, tries
// other_methods() in order and puts the method's settings in front of those found.
template <class Find>
auto of_first_method(const Recipe& recipe, const ModelFiles& files, const Find& find) {
  auto found = find(recipe);
  if (found) return found;
  for (const Position& method : other_methods(recipe, files)) {
    const auto changed = unless_refused([&] { return with_settings(recipe, method.settings); });
    if (changed) found = find(*changed);
    if (!found) continue;
    found->settings = join_settings(method.settings, found->settings);
    break;
  }
  return found;
}

}  // namespace jackscrew
