#include "train/resume.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/shell_word.h"
#include "recipe/recipe.h"
#include "recipe/recipe_file.h"
#include "recipe/record_options.h"
#include "report/event_log.h"
#include "report/progress.h"

namespace jackscrew {

namespace {

constexpr const char* kGoesOn = "; continuing with the new value";

// The options of the run that wrote the directory.
OptionSet saved_options(const fs::path& directory, const OptionSet& options) {
  OptionSet saved;
  for (const OptionTable& table : options.tables()) saved.add(table);
  for (const Assignment& assignment : read_recipe_file(directory / kRecipeName)) {
    // Another version may have had other options; resume_warnings() names the version anyway.
    if (saved.find(assignment.name) != nullptr) saved.set(assignment);
  }
  return saved;
}

// Whether the result of one of the two runs depends on an option.
bool counts(const OptionSpec& option, const OptionSet& then, const OptionSet& now) {
  const std::string_view name = option.name;
  if (name == "eval_steps") return evaluations_decide(then) || evaluations_decide(now);
  const bool idle = without_effect(then, name) != nullptr && without_effect(now, name) != nullptr;
  return option.affects_result && !idle;
}

// Whether two values of an option are paths of the same files, written in different ways.
bool are_same_files(const OptionValue& then, const OptionValue& now) {
  if (!now.spec.is_path) return false;
  return std::ranges::equal(then.parts(), now.parts(), [](const fs::path& a, const fs::path& b) {
    return a == b || is_same_file(a, b);
  });
}

// Whether an option may name the same files as then in another place: those of then are gone. Words
// in place of a path, such as `auto`, were never there.
bool may_have_moved(const OptionValue& then, const OptionValue& now) {
  const std::string_view name = now.spec.name;
  if (name != "data" && !names_model(now.spec.name)) return false;
  const bool takes_words = name == "tokenizer" || name == "chat_template";
  return std::ranges::equal(then.parts(), now.parts(), [&](const fs::path& a, const fs::path& b) {
    if (a == b || is_same_file(a, b)) return true;
    const bool is_path = !takes_words || a.has_parent_path() || a.has_extension();
    std::error_code ignored;
    return is_path && !fs::exists(a, ignored) && fs::exists(b, ignored);
  });
}

// Whether two values of an option give the same result.
bool same_for_result(const OptionValue& then, const OptionValue& now) {
  const std::string_view name = now.spec.name;
  if (name == "product") return is_same_product(then.text, now.text);
  // No template printed it, or the run is of a version that did not keep the day.
  if (name == "chat_date" && then.text == "today") return true;
  return same_value(then, now) || are_same_files(then, now);
}

std::string shown(const OptionValue& value) {
  return value.text.empty() ? "not set" : value.text;
}

}  // namespace

bool evaluations_decide(const OptionSet& options) {
  return options.boolean("load_best_model_at_end") ||
         options.integer("early_stopping_patience") > 0;
}

std::string OptionChange::text(const std::string& when) const {
  return fmt::format("{} was {} {} and is {} now", name, before, when, now);
}

bool is_empty_recipe(const fs::path& recipe) {
  return read_recipe_file(recipe).empty();
}

std::optional<std::string> saved_value(const fs::path& recipe, const char* option) {
  if (!fs::exists(recipe)) return std::nullopt;
  try {
    for (const Assignment& assignment : read_recipe_file(recipe)) {
      if (assignment.name == option) return assignment.text;
    }
  } catch (const Error&) {  // not a run's recipe: whoever looks at the directory next says so
  }
  return std::nullopt;
}

bool names_model(const std::string& option) {
  return option == "model" || option == "tokenizer" || option == "chat_template";
}

std::vector<OptionChange> changed_options(const fs::path& directory, const OptionSet& options) {
  std::vector<OptionChange> changes;
  const OptionSet saved = saved_options(directory, options);
  for (const OptionValue& value : options.values()) {
    if (!options.tables()[value.table].saved || !counts(value.spec, saved, options)) continue;
    const OptionValue& before = *saved.find(value.spec.name);
    if (same_for_result(before, value)) continue;
    changes.push_back(
        {value.spec.name, shown(before), shown(value), may_have_moved(before, value)});
  }
  return changes;
}

std::vector<std::string> resume_warnings(const fs::path& checkpoint, const CheckpointInfo& now,
                                         const OptionSet& options) {
  std::vector<std::string> warnings;
  const CheckpointInfo then = read_checkpoint_info(checkpoint);
  if (then.version != now.version || then.isa != now.isa) {
    warnings.push_back(fmt::format(
        "{} was written by version {} on {}; the run continues, but not with the same bits",
        checkpoint.string(), then.version, then.isa));
  }
  const std::vector<OptionChange> changes = changed_options(checkpoint, options);
  for (const OptionChange& change : changes) {
    warnings.push_back(change.text(kCheckpointTime) + kGoesOn);
  }
  const bool other_data = std::ranges::any_of(changes, [](const OptionChange& change) {
    return change.name == "data" || change.name == "max_samples" ||
           std::ranges::find(record_options(), change.name, &OptionSpec::name) !=
               record_options().end();
  });
  // A user does not notice changed contents under an old name, so this is an error unless the
  // checkpoint was named.
  const auto refuse_unless_named = [&](ErrorKind kind, const std::string& what,
                                       const std::string& before, const std::string& after) {
    const std::string changed = fmt::format("the {} changed since {} was written: {} now, {} then",
                                            what, checkpoint.string(), after, before);
    if (options.text("resume") == "auto") {
      throw Error(kind, changed,
                  fmt::format("restore the old, start over with overwrite=true, or continue with "
                              "the new: resume={}",
                              shell_word(checkpoint.string())));
    }
    warnings.push_back(changed + "; continuing with the new");
  };
  if (!then.data.empty() && then.data != now.data && !other_data) {
    refuse_unless_named(ErrorKind::data, "data have", then.data, now.data);
  }
  const bool other_model = std::ranges::any_of(
      changes, [](const OptionChange& change) { return names_model(change.name); });
  if (!then.model.empty() && then.model != now.model && !other_model) {
    refuse_unless_named(ErrorKind::model, "model has", then.model, now.model);
  }
  return warnings;
}

std::string other_held_out(const fs::path& written) {
  return fmt::format(
      "the held-out data have changed since {} was written, and evaluations of both are not "
      "compared, neither for the best nor for early stopping",
      written.string());
}

void warn_of_other_held_out(const fs::path& log, const std::string& now) {
  const std::string then = held_out_fingerprint(log);
  if (then.empty() || now.empty() || then == now) return;
  warn(fmt::format("{}: {} now, {} then", other_held_out(log), now, then));
}

}  // namespace jackscrew
