#include "train/run_start.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "recipe/recipe_file.h"
#include "report/event_log.h"
#include "session/adapter.h"
#include "session/place.h"
#include "train/output_dir.h"
#include "train/resume.h"
#include "train/run_exports.h"
#include "train/run_watch.h"

namespace jackscrew {

namespace {

// What the log says of the run in output_dir.
struct LoggedRun {
  RunInputs inputs;                    // empty where the log does not say
  std::optional<int64_t> ended_after;  // so many steps, if it reached its end
};

LoggedRun logged_run(const fs::path& output) {
  LoggedRun run;
  for_events(output / kLogName, [&](const nlohmann::json& event) {
    const auto is = [&](EventKind kind) { return event["event"] == event_name(kind); };
    const auto read = [&](const char* name, std::string& to) {
      const auto found = event.find(name);
      if (found != event.end() && found->is_string()) to = *found;
    };
    // After the end, of the result.
    if (is(EventKind::exported) || is(EventKind::sample) || is(EventKind::save)) return;
    run.ended_after.reset();
    if (is(EventKind::end)) run.ended_after = event["step"].get<int64_t>();
    if (!is(EventKind::start)) return;
    read("data_fingerprint", run.inputs.data);
    read("model_fingerprint", run.inputs.model);
    run.inputs.held_out.clear();
    read(kHeldOutFingerprint, run.inputs.held_out);
  });
  return run;
}

// The checkpoint that the recipe asks for; empty: none.
fs::path wanted_checkpoint(const Recipe& recipe) {
  if (recipe.resume == "never") return {};
  if (recipe.resume != "auto") return recipe.resume;
  if (recipe.overwrite) return {};
  const std::vector<fs::path> checkpoints = list_checkpoints(recipe.output_dir);
  return checkpoints.empty() ? fs::path() : checkpoints.back();
}

bool lies_in(const fs::path& checkpoint, const fs::path& output) {
  return std::ranges::any_of(list_checkpoints(output),
                             [&](const fs::path& path) { return is_same_file(path, checkpoint); });
}

// How to train on from a result that has no checkpoint of its last step.
std::string train_on(const fs::path& output) {
  return fmt::format("train from the result with {} and another output_dir",
                     result_setting(output));
}

// Such a run goes on from that checkpoint with overwrite=true, too.
bool names_checkpoint(const Recipe& recipe) {
  return recipe.resume != "auto" && recipe.resume != "never";
}

// Of overwrite=true, beside a result.
const char* anew(const Recipe& recipe) {
  return names_checkpoint(recipe) ? "overwrite=true replaces it"
                                  : "overwrite=true starts over and replaces it";
}

// What else there is to do where a checkpoint cannot be gone on from.
const char* without_it(const Recipe& recipe) {
  if (!names_checkpoint(recipe))
    return "give another output_dir, or start over with overwrite=true";
  return recipe.overwrite ? "or leave resume out and give another output_dir: in this one "
                            "overwrite=true then starts over and removes a run that is there"
                          : "or leave resume out";
}

// Whether an option says how long a run is, and nothing else of it.
bool is_length(const std::string& option) {
  return option == "max_steps" || option == "num_train_epochs" ||
         option == "early_stopping_patience";
}

// Whether an option is of the model, or says what learns and how it is kept: states of another
// choice are other states, or mean something else.
bool is_of_states(const OptionSet& options, const std::string& option) {
  const size_t table = options.at(option, "recipe").table;
  const std::string& title = options.tables()[table].title;
  return title == option_titles::kModel || title == option_titles::kMethod ||
         std::ranges::any_of(method_tables(),
                             [&](const MethodTable& of) { return method_title(of) == title; });
}

// What differs between the run that a directory is of, an output_dir or a checkpoint, and a recipe.
struct Changes {
  std::vector<std::string> texts;
  bool is_same_run = true;     // but for its length
  bool has_its_states = true;  // which are then a beginning for this run, too
};

Changes changes_since(const fs::path& directory, const Recipe& recipe) {
  if (!fs::exists(directory / kRecipeName))
    return {{fmt::format("its {} is missing", kRecipeName)}, false, false};
  Changes changes;
  for (const OptionChange& change : changed_options(directory, recipe.options)) {
    changes.texts.push_back(change.text("then"));
    if (!is_length(change.name)) changes.is_same_run = false;
    if (is_of_states(recipe.options, change.name)) changes.has_its_states = false;
  }
  return changes;
}

// What else there is to do about the result of a run that ended after `step` steps, where this one
// is of `total_steps`.
std::string or_from_its_end(const Recipe& recipe, int64_t step, int64_t total_steps,
                            const Changes& changes) {
  const fs::path its_end = checkpoint_path(recipe.output_dir, step);
  if (!is_checkpoint(its_end)) {
    return fmt::format("; it left no {} to continue from{}", its_end.filename().string(),
                       changes.has_its_states ? ": " + train_on(recipe.output_dir) : "");
  }
  const bool may = changes.has_its_states && total_steps > step;
  const std::string going_on = "goes on from its end";
  return fmt::format(
      "{}; with all of it as it was, a larger max_steps or, where it stopped early, "
      "early_stopping_patience {} by itself",
      may ? fmt::format(", or with resume={} {}", shell_word(its_end.string()), going_on) : "",
      may ? "does so" : going_on);
}

// Throws: the result in output_dir, of a run of so many steps, is another one.
[[noreturn]] void refuse_finished(const Recipe& recipe, int64_t step, int64_t total_steps,
                                  ErrorKind kind, const Changes& changes) {
  throw Error(kind,
              fmt::format("output_dir {} holds the result of a finished run of {}: {}",
                          recipe.output_dir, counted(step, "step"), fmt::join(changes.texts, ", ")),
              fmt::format("give another output_dir; {}{}", anew(recipe),
                          or_from_its_end(recipe, step, total_steps, changes)));
}

// Returns a value if this recipe's run has ended and nothing is left to do, nullopt if it may
// continue: where it is the same run, only longer. Throws where the result is another run's, and
// where early stopping would end the longer one at once.
std::optional<FinishedRun> check_result(const Recipe& recipe, const LoggedRun& ended,
                                        const fs::path& checkpoint, int64_t total_steps,
                                        const RunInputs& inputs) {
  const fs::path output = recipe.output_dir;
  const int64_t step = ended.ended_after.value();
  const fs::path its_end = checkpoint_path(output, step);
  const bool can_go_on = is_checkpoint(its_end);
  Changes changes = changes_since(output, recipe);
  ErrorKind kind = ErrorKind::usage;
  const auto compare = [&](const char* what, const std::string& then, const std::string& now,
                           ErrorKind kind_of_it) {
    if (then.empty() || then == now) return;
    if (changes.is_same_run) kind = kind_of_it;
    changes.is_same_run = false;
    changes.texts.push_back(fmt::format("the {} {} then and {} now", what, then, now));
  };
  compare("data were", ended.inputs.data, inputs.data, ErrorKind::data);
  compare("model had", ended.inputs.model, inputs.model, ErrorKind::model);
  // Other texts may find another evaluation the best, and another end. A longer run may go on with
  // them: its evaluations are compared with one another alone.
  const std::string& held_out = ended.inputs.held_out;
  if (evaluations_decide(recipe.options) && !held_out.empty() && held_out != inputs.held_out) {
    if (changes.texts.empty()) kind = ErrorKind::data;
    changes.texts.push_back(
        fmt::format("the held-out data were {} then and {} now", held_out, inputs.held_out));
  }
  RunWatch watch(recipe.watch);
  const bool comparable = held_out.empty() || held_out == inputs.held_out;
  // Only its patience is asked for below.
  if (comparable && recipe.watch.early_stopping_patience > 0) watch.replay(output / kLogName);
  if (changes.texts.empty()) {
    const bool did_all = step >= total_steps;
    const std::string more = !did_all ? "give a larger early_stopping_patience"
                             : watch.out_of_patience()
                                 ? "give a larger max_steps and a larger early_stopping_patience"
                                 : "give a larger max_steps or num_train_epochs";
    return FinishedRun{step, can_go_on ? more : train_on(output)};
  }
  const bool from_its_end = !checkpoint.empty() && is_same_file(checkpoint, its_end);
  if (changes.is_same_run && from_its_end && total_steps > step) {
    if (!watch.out_of_patience()) return std::nullopt;
    // It would end where it began.
    throw Error(ErrorKind::usage,
                fmt::format("output_dir {} holds the result of a run that would stop again after "
                            "{}: {}",
                            output.string(), counted(step, "step"), watch.why_stopped()),
                "give a larger early_stopping_patience");
  }
  refuse_finished(recipe, step, total_steps, kind, changes);
}

// Whether output_dir has begun this run, of which a checkpoint of elsewhere is, too: what a run
// saves there when its own disk is full. Its recipe and what it read must be the same here and
// there, so that no other run passes for it; of a model, a checkpoint says only what it does not
// have itself.
bool is_left_elsewhere(const Recipe& recipe, const fs::path& checkpoint, const RunInputs& inputs) {
  const fs::path output = recipe.output_dir;
  if (!changes_since(output, recipe).texts.empty()) return false;
  if (!changes_since(checkpoint, recipe).texts.empty()) return false;
  const RunInputs begun = logged_run(output).inputs;
  return begun.data == inputs.data && begun.model == inputs.model &&
         read_checkpoint_info(checkpoint).data == inputs.data;
}

// Throws Error(usage) where this run would replace a result although it is not the one that goes on
// in output_dir: that has a checkpoint there, or left it elsewhere, and was allowed to replace the
// result or made it.
void refuse_to_replace(const Recipe& recipe, const fs::path& checkpoint, const RunInputs& inputs) {
  const fs::path output = recipe.output_dir;
  const std::string what =
      fmt::format("output_dir {} holds a result, which this run would replace", output.string());
  if (checkpoint.empty() || !lies_in(checkpoint, output)) {
    if (!checkpoint.empty() && is_left_elsewhere(recipe, checkpoint, inputs)) return;
    throw Error(ErrorKind::usage, what, fmt::format("give another output_dir; {}", anew(recipe)));
  }
  const Changes changes = changes_since(output, recipe);
  if (changes.texts.empty()) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("{}, and {} is of another run: {}", what, checkpoint.string(),
                  fmt::join(changes.texts, ", ")),
      fmt::format("give another output_dir; {}{}; with all of it as it was, the run goes on by "
                  "itself",
                  anew(recipe),
                  changes.has_its_states ? fmt::format(", or with resume={} goes on from there",
                                                       shell_word(checkpoint.string()))
                                         : ""));
}

// Whether output_dir has another run than this one, which goes on from a checkpoint of elsewhere:
// evaluations in that run's log, and its best checkpoint, would be taken for this one's. Throws
// Error(usage) unless the recipe replaces it.
bool replaces_another(const Recipe& recipe, const fs::path& checkpoint) {
  const fs::path output = recipe.output_dir;
  if (lies_in(checkpoint, output) || !fs::exists(output / kRecipeName)) return false;
  std::vector<std::string> changes;
  for (const OptionChange& change : changed_options(output, recipe.options)) {
    if (!is_length(change.name)) changes.push_back(change.text("then"));
  }
  if (changes.empty()) return false;
  if (recipe.overwrite) return true;
  throw Error(ErrorKind::usage,
              fmt::format("output_dir {} holds another run than {} is to go on with: {}",
                          output.string(), checkpoint.string(), fmt::join(changes, ", ")),
              "give another output_dir; with overwrite=true its log and checkpoints begin anew");
}

// The step of a checkpoint that can be used as far as its small files tell. Throws Error.
int64_t usable_step(const fs::path& checkpoint) {
  const int64_t step = read_checkpoint_info(checkpoint).step;
  if (!fs::exists(checkpoint / kRecipeName)) {
    fail(ErrorKind::model, "{} has no {}", checkpoint.string(), kRecipeName);
  }
  return step;
}

// The newest usable checkpoint before `checkpoint`; empty where there is none.
fs::path usable_before(const fs::path& checkpoint, const fs::path& output) {
  fs::path found;
  for (const fs::path& path : list_checkpoints(output)) {
    if (path == checkpoint) break;
    try {
      usable_step(path);
      found = path;
    } catch (const Error&) {
      continue;
    }
  }
  return found;
}

// Throws `error`, which says why the checkpoint cannot be used. Where it was taken because it is
// the newest and is damaged, the hint names an older one: that is taken only if the recipe names
// it.
[[noreturn]] void refuse_checkpoint(const fs::path& checkpoint, const Recipe& recipe,
                                    const Error& error) {
  const bool damaged = error.kind() == ErrorKind::model || error.kind() == ErrorKind::data;
  if (recipe.resume != "auto" || !damaged) throw Error(error);
  const fs::path before = usable_before(checkpoint, recipe.output_dir);
  const std::string older =
      before.empty()
          ? ""
          : fmt::format("resume={}{} continues from there; ", shell_word(before.string()),
                        has_result(recipe.output_dir) ? " overwrite=true" : "");
  throw Error(error.kind(), error.what(),
              fmt::format("{}overwrite=true starts over; repair it, or move it away", older));
}

int64_t step_of(const fs::path& checkpoint, const Recipe& recipe) {
  try {
    return usable_step(checkpoint);
  } catch (const Error& error) {
    refuse_checkpoint(checkpoint, recipe, error);
  }
}

// The recipe of the run that this one continues, or of the one in output_dir that has ended; empty:
// there is none.
fs::path recipe_before(const Recipe& recipe) {
  if (recipe.resume == "never") return {};
  if (recipe.resume != "auto") return fs::path(recipe.resume) / kRecipeName;
  const fs::path output = recipe.output_dir;
  if (recipe.overwrite) return {};
  if (list_checkpoints(output).empty() && !has_result(output)) return {};
  return output / kRecipeName;
}

// The lanes of that run: with the same lanes the bits are the same, whatever the number of ranks.
std::optional<std::string> lanes_before(const Recipe& recipe) {
  const fs::path path = recipe_before(recipe);
  if (!fs::exists(path)) return std::nullopt;
  try {
    for (const Assignment& assignment : read_recipe_file(path)) {
      if (assignment.name == "data_parallel" && parse_int(assignment.text)) return assignment.text;
    }
  } catch (const Error&) {  // not a run's recipe: whoever looks at the directory next says so
  }
  return std::nullopt;
}

// Throws Error(usage) where the ranks cannot share the lanes of the run before.
void require_lanes_of(const Recipe& recipe, int ranks) {
  try {
    layout_of(recipe, ranks);
  } catch (const Error& error) {
    throw Error(
        error.kind(),
        fmt::format("{} is of a run with {}: {}", recipe_before(recipe).string(),
                    counted(recipe.data_parallel, "lane"), error.what()),
        fmt::format("start as many ranks as then, or {}",
                    recipe.resume == "auto" ? "give another output_dir; overwrite=true starts over"
                                            : "leave resume out"));
  }
}

}  // namespace

std::string how_to_go_on(const Recipe& recipe, const RunStart& start, const fs::path& checkpoint) {
  // Where nothing was saved since, the command begins where this one did.
  const std::string again = checkpoint == start.checkpoint
                                ? "run the same command again"
                                : same_command_again(recipe, checkpoint.parent_path());
  return fmt::format("{} to continue from {}", again, checkpoint.string());
}

std::string hint_after_non_finite(const Recipe& recipe, int64_t updates, std::string hint,
                                  const fs::path& newest) {
  if (updates == 0) hint = "the model's weights are damaged, or too large for this product";
  if (hint.empty()) hint = "lower learning_rate or lengthen the warm-up";
  if (newest.empty()) return hint;
  // What the last update has ruined may show in the step after it only.
  const fs::path before = usable_before(newest, newest.parent_path());
  const std::string further_back =
      !before.empty()
          ? fmt::format("resume={} continues from the one before", shell_word(before.string()))
      : names_checkpoint(recipe) ? "overwrite=true without resume starts over"
                                 : "overwrite=true starts over";
  return fmt::format("{}; the last checkpoint is {}; if the same happens from there, {}", hint,
                     newest.string(), further_back);
}

void refuse_states(const fs::path& checkpoint, const Recipe& recipe, const Error& error) {
  std::vector<OptionChange> changes = changed_options(checkpoint, recipe.options);
  // A longer run goes on from the same states.
  std::erase_if(changes, [](const OptionChange& change) { return is_length(change.name); });
  if (changes.empty()) refuse_checkpoint(checkpoint, recipe, error);
  std::vector<std::string> texts;
  for (const OptionChange& change : changes) texts.push_back(change.text(kCheckpointTime));
  throw Error(error.kind(), error.what(),
              fmt::format("{}; undo that, {}", fmt::join(texts, ", "), without_it(recipe)));
}

Recipe with_lanes(Recipe recipe, int ranks) {
  const bool automatic = recipe.options.is_word("data_parallel");
  const int64_t own = layout_of(recipe, ranks).lanes;
  if (const auto before = automatic ? lanes_before(recipe) : std::nullopt) {
    recipe.data_parallel = *parse_int(*before);
    require_lanes_of(recipe, ranks);
  } else {
    recipe.data_parallel = own;
  }
  if (automatic) {
    recipe.options.set("data_parallel", std::to_string(recipe.data_parallel), "the ranks");
  }
  return recipe;
}

void check_model(const Recipe& recipe, const ModelFiles& files) {
  require_trainable(recipe);
  if (files.source != nullptr || recipe.random_init) return;
  throw Error(ErrorKind::usage, fmt::format("{} is a shape without weights", recipe.model),
              "set init=random to train from scratch, or give a model directory or GGUF file");
}

int64_t total_steps(const Recipe& recipe, int64_t steps_per_epoch) {
  if (recipe.max_steps > 0) return recipe.max_steps;
  const double steps = std::ceil(recipe.num_train_epochs * static_cast<double>(steps_per_epoch));
  const double most = recipe.options.at("max_steps", "").spec.max;
  if (steps > most) {
    throw Error(ErrorKind::usage,
                fmt::format("num_train_epochs {} of {} are more steps than a run can have",
                            recipe.num_train_epochs, counted(steps_per_epoch, "step")),
                fmt::format("set max_steps, at most {:.0f}", most));
  }
  return std::max<int64_t>(1, static_cast<int64_t>(steps));
}

std::string same_command_again(const Recipe& recipe, const fs::path& output_dir) {
  std::string without;
  if (recipe.resume != "auto") without += " resume=" + shell_word(recipe.resume);
  if (recipe.overwrite) without += " overwrite=true";
  // As it was given: Recipe::output_dir follows a directory that is moved before the first step.
  const fs::path given = recipe.options.text("output_dir");
  const bool moved = output_dir != given && !is_same_file(output_dir, given);
  if (!moved) {
    return fmt::format("run the same command again{}{}", without.empty() ? "" : " without",
                       without);
  }
  return fmt::format("run the same command with output_dir={}{}{}", shell_word(output_dir.string()),
                     without.empty() ? "" : " and without", without);
}

Error lost_after_the_result(const Error& lost, const Recipe& recipe, const fs::path& output_dir) {
  const bool lacks = lacks_exports(recipe, output_dir);
  return {lost.kind(),
          fmt::format("the result is whole in {}, but {}", output_dir.string(), lost.what()),
          lacks ? same_command_again(recipe, output_dir) + " for the exports" : lost.hint()};
}

Schedule run_schedule(const Recipe& recipe, int64_t total_steps) {
  const int64_t warmup_steps =
      recipe.warmup_steps.value_or(warmup_from_ratio(recipe.warmup_ratio, total_steps));
  if (warmup_steps >= total_steps) {
    throw Error(ErrorKind::usage,
                fmt::format("warmup_steps {} is not less than the {} of this run", warmup_steps,
                            counted(total_steps, "step")),
                "the learning rate would never reach its peak");
  }
  return {recipe.lr_schedule, recipe.learning_rate, warmup_steps, total_steps};
}

void refuse_other_recipe(const Recipe& recipe) {
  const fs::path output = recipe.output_dir;
  if (recipe.overwrite || !has_result(output)) return;
  const Changes changes = changes_since(output, recipe);
  if (changes.texts.empty()) return;
  if (const std::optional<int64_t> step = logged_run(output).ended_after) {
    if (changes.is_same_run) return;
    // Of epochs nobody knows yet how many steps they are.
    refuse_finished(recipe, *step, recipe.max_steps, ErrorKind::usage, changes);
  }
  // Whatever the inputs are, they do not make it the same run.
  refuse_to_replace(recipe, wanted_checkpoint(recipe), {});
}

RunStart find_start(Recipe recipe, const fs::path& output, int64_t total_steps,
                    const RunInputs& inputs) {
  recipe.output_dir = output.string();
  RunStart start{wanted_checkpoint(recipe), {}};
  if (!recipe.overwrite && has_result(output)) {
    if (const LoggedRun logged = logged_run(output); logged.ended_after) {
      start.finished = check_result(recipe, logged, start.checkpoint, total_steps, inputs);
      if (start.finished) return start;
    } else {
      refuse_to_replace(recipe, start.checkpoint, inputs);
    }
  }
  if (start.checkpoint.empty()) return start;
  const int64_t step = step_of(start.checkpoint, recipe);
  if (step > total_steps) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is at step {}, beyond the {} of this run",
                            start.checkpoint.string(), step, counted(total_steps, "step")),
                fmt::format("raise max_steps, {}", without_it(recipe)));
  }
  start.replaces_another = replaces_another(recipe, start.checkpoint);
  return start;
}

}  // namespace jackscrew
