#include "train/earlier_result.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "formats/peft.h"
#include "report/event_log.h"
#include "session/place.h"
#include "session/plan.h"
#include "train/output_dir.h"
#include "train/resume.h"
#include "train/run_exports.h"
#include "train/run_watch.h"

namespace jackscrew {

bool lies_in(const fs::path& checkpoint, const fs::path& output) {
  return std::ranges::any_of(list_checkpoints(output),
                             [&](const fs::path& path) { return is_same_file(path, checkpoint); });
}

bool names_checkpoint(const Recipe& recipe) {
  return recipe.resume != "auto" && recipe.resume != "never";
}

bool is_length(const std::string& option) {
  return option == "max_steps" || option == "num_train_epochs" ||
         option == "early_stopping_patience";
}

LoggedRun logged_run(const fs::path& output) {
  LoggedRun run;
  for_events(output / kLogName, [&](const nlohmann::json& event) {
    const auto is = [&](EventKind kind) { return event["event"] == event_name(kind); };
    const auto read = [&](const char* name, std::string& to) {
      const auto found = event.find(name);
      if (found != event.end() && found->is_string()) to = *found;
    };
    if (is(EventKind::sample) && event["step"] == 0) ++run.samples;
    // These may follow `end`; they do not continue the run.
    if (is(EventKind::exported) || is(EventKind::sample) || is(EventKind::save)) return;
    run.ended_after.reset();
    run.result_step.reset();
    if (is(EventKind::step)) run.last_step = event["step"].get<int64_t>();
    if (is(EventKind::end)) {
      run.ended_after = event["step"].get<int64_t>();
      const auto best = event.find("result_step");
      if (best != event.end() && best->is_number_integer()) run.result_step = *best;
    }
    if (!is(EventKind::start)) return;
    run.total_steps = event.value("total_steps", int64_t{0});
    read("data_fingerprint", run.inputs.data);
    read("model_fingerprint", run.inputs.model);
    run.inputs.held_out.clear();
    read(kHeldOutFingerprint, run.inputs.held_out);
  });
  return run;
}

namespace {

// How to train on from a result that has no checkpoint of its last step.
std::string train_on(const fs::path& output) {
  return fmt::format("train from the result with {} and another output_dir",
                     result_setting(output));
}

// For a hint where a result exists: what overwrite=true does to it.
const char* anew(const Recipe& recipe) {
  return names_checkpoint(recipe) ? "overwrite=true replaces it"
                                  : "overwrite=true starts over and replaces it";
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
  bool has_other_data = false;
  ErrorKind kind = ErrorKind::usage;  // of the error that names them
};

// is_name(change) says which changes are only of the names of what is the same: those are none.
template <class IsName>
Changes changes_since(const fs::path& directory, const Recipe& recipe, const IsName& is_name) {
  const fs::path recipe_then = directory / kRecipeName;
  const bool is_missing = !fs::exists(recipe_then);
  if (is_missing || is_empty_recipe(recipe_then)) {
    return {.texts = {fmt::format("its {} is {}", kRecipeName,
                                  is_missing ? "missing" : "damaged: it is empty")},
            .is_same_run = false,
            .has_its_states = false};
  }
  Changes changes;
  for (const OptionChange& change : changed_options(directory, recipe.options)) {
    if (is_name(change)) continue;
    changes.texts.push_back(change.text("then"));
    if (!is_length(change.name)) changes.is_same_run = false;
    if (is_of_states(recipe.options, change.name)) changes.has_its_states = false;
    if (change.name == "data") changes.has_other_data = true;
  }
  return changes;
}

Changes changes_since(const fs::path& directory, const Recipe& recipe) {
  return changes_since(directory, recipe, [](const OptionChange&) { return false; });
}

// The same for the run in output_dir, with what both read: other names of that are no change.
Changes changes_since(const Recipe& recipe, const RunInputs& then, const RunInputs& now) {
  return changes_since(recipe.output_dir, recipe, [&](const OptionChange& change) {
    if (change.name == "data") return !then.data.empty() && then.data == now.data;
    return names_model(change.name) && !then.model.empty() && then.model == now.model;
  });
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
  const std::string how =
      changes.has_other_data && changes.has_its_states
          ? "with other data, " + train_on(recipe.output_dir)
          : "to continue the run, change nothing but give a larger max_steps or num_train_epochs "
            "or, where it stopped early, early_stopping_patience";
  return fmt::format(
      "{}; {}",
      may ? fmt::format(", or with resume={} continues from its end", shell_word(its_end.string()))
          : "",
      how);
}

// Throws: the result in output_dir, of a run of so many steps, is another one.
[[noreturn]] void refuse_finished(const Recipe& recipe, int64_t step, int64_t total_steps,
                                  const Changes& changes) {
  throw Error(changes.kind,
              fmt::format("output_dir {} holds the result of a finished run of {}: {}",
                          recipe.output_dir, counted(step, "step"), fmt::join(changes.texts, ", ")),
              fmt::format("give another output_dir; {}{}", anew(recipe),
                          or_from_its_end(recipe, step, total_steps, changes)));
}

// Whether output_dir has begun this run, of which a checkpoint of elsewhere is, too: what a run
// saves there when its own disk is full. Its recipe and what it read must be the same here and
// there, so that no other run passes for it; of a model, a checkpoint says only what it does not
// have itself.
bool is_left_elsewhere(const Recipe& recipe, const RunInputs& begun, const Changes& changes,
                       const fs::path& checkpoint, const RunInputs& inputs) {
  if (!changes.texts.empty()) return false;
  if (!changes_since(checkpoint, recipe).texts.empty()) return false;
  return begun.data == inputs.data && begun.model == inputs.model &&
         read_checkpoint_info(checkpoint).data == inputs.data;
}

// What differs between the finished run in output_dir and this one, with what both read.
Changes changes_since_end(const Recipe& recipe, const LoggedRun& ended, const RunInputs& inputs) {
  Changes changes = changes_since(recipe, ended.inputs, inputs);
  const auto compare = [&](const char* what, const std::string& then, const std::string& now,
                           ErrorKind kind_of_it) {
    if (then.empty() || then == now) return;
    if (changes.is_same_run) changes.kind = kind_of_it;
    changes.is_same_run = false;
    if (kind_of_it == ErrorKind::data) changes.has_other_data = true;
    changes.texts.push_back(fmt::format("the {} {} then and {} now", what, then, now));
  };
  compare("data were", ended.inputs.data, inputs.data, ErrorKind::data);
  compare("model had", ended.inputs.model, inputs.model, ErrorKind::model);
  // With other held-out data another evaluation may be the best, and the run may stop elsewhere. A
  // longer run may continue: only its own evaluations are compared.
  const std::string& held_out = ended.inputs.held_out;
  if (evaluations_decide(recipe.options) && !held_out.empty() && held_out != inputs.held_out) {
    if (changes.texts.empty()) changes.kind = ErrorKind::data;
    changes.texts.push_back(
        fmt::format("the held-out data were {} then and {} now", held_out, inputs.held_out));
  }
  return changes;
}

// What the evaluations of the finished run say of this one: only of its patience.
RunWatch watch_of(const Recipe& recipe, const LoggedRun& ended, int64_t total_steps,
                  const RunInputs& inputs) {
  RunWatch watch(recipe.watch);
  const std::string& held_out = ended.inputs.held_out;
  const bool comparable = held_out.empty() || held_out == inputs.held_out;
  if (comparable && recipe.watch.early_stopping_patience > 0) {
    watch.replay(recipe.output_dir);
    // The log may lack evaluations that the run's last checkpoint knows of.
    const int64_t step = ended.ended_after.value();
    const fs::path its_end = checkpoint_path(recipe.output_dir, step);
    const bool is_asked = step < total_steps && !watch.out_of_patience();
    if (is_asked && is_checkpoint(its_end)) watch.restore(its_end, inputs.held_out);
  }
  return watch;
}

// Returns a value if this recipe's run has ended and nothing is left to do, nullopt if it may
// continue: where it is the same run, only longer. Throws where the result is another run's, and
// where early stopping would end the longer one at once.
std::optional<FinishedRun> check_finished(const Recipe& recipe, const LoggedRun& ended,
                                          const fs::path& checkpoint, int64_t total_steps,
                                          const RunInputs& inputs) {
  const fs::path output = recipe.output_dir;
  const int64_t step = ended.ended_after.value();
  const fs::path its_end = checkpoint_path(output, step);
  const bool can_go_on = is_checkpoint(its_end);
  Changes changes = changes_since_end(recipe, ended, inputs);
  const RunWatch watch = watch_of(recipe, ended, total_steps, inputs);
  const bool did_all = step >= total_steps;
  if (changes.texts.empty() && (did_all || watch.out_of_patience())) {
    const std::string more = !did_all ? "give a larger early_stopping_patience"
                             : watch.out_of_patience()
                                 ? "give a larger max_steps and a larger early_stopping_patience"
                                 : "give a larger max_steps or num_train_epochs";
    const char* described_by = makes_adapter(recipe) ? kAdapterConfig : "config.json";
    return FinishedRun{step, can_go_on ? more : train_on(output),
                       fs::exists(output / described_by) ? "" : described_by,
                       ended.result_step.value_or(step)};
  }
  // Its recipe is there, but nothing in the log: killed as it began.
  if (changes.texts.empty()) {
    changes.texts.push_back(
        fmt::format("a run of {} has begun since", counted(total_steps, "step")));
  }
  const bool from_its_end = !checkpoint.empty() && is_same_file(checkpoint, its_end);
  if (changes.is_same_run && from_its_end && total_steps > step) {
    if (!watch.out_of_patience()) return std::nullopt;
    // The longer run would stop where it begins.
    throw Error(ErrorKind::usage,
                fmt::format("output_dir {} holds the result of a run that would stop again after "
                            "{}: {}",
                            output.string(), counted(step, "step"), watch.why_stopped()),
                "give a larger early_stopping_patience");
  }
  refuse_finished(recipe, step, total_steps, changes);
}

// What output_dir is, if its log or its exports are left of a result whose weights are gone.
std::string left_of_result(const fs::path& output, const LoggedRun& logged) {
  if (logged.ended_after)
    return fmt::format("is of a finished run of {}", counted(*logged.ended_after, "step"));
  return has_exports(output) ? "has exports of a result" : "";
}

// Throws where another run would take the place of what is left of a result, unless it goes on from
// a checkpoint there.
void refuse_to_lose(const Recipe& recipe, const std::string& left, const Changes& changes,
                    const fs::path& checkpoint) {
  if (changes.texts.empty() || lies_in(checkpoint, recipe.output_dir)) return;
  throw Error(changes.kind,
              fmt::format("output_dir {} {} whose weights are gone: {}", recipe.output_dir, left,
                          fmt::join(changes.texts, ", ")),
              fmt::format("give another output_dir, or move the weights back; {}", anew(recipe)));
}

// Returns a value if this run writes the result again whose weights are gone; as it is the same
// run, to the same step.
std::optional<FinishedRun> check_lost(const Recipe& recipe, const LoggedRun& logged,
                                      const fs::path& checkpoint, int64_t total_steps,
                                      const RunInputs& inputs) {
  const std::string left = left_of_result(recipe.output_dir, logged);
  if (left.empty()) return std::nullopt;
  const Changes changes = changes_since_end(recipe, logged, inputs);
  refuse_to_lose(recipe, left, changes, checkpoint);
  if (!logged.ended_after || !changes.texts.empty()) return std::nullopt;
  const bool is_its_own = checkpoint.empty() || lies_in(checkpoint, recipe.output_dir);
  const bool ends_there = *logged.ended_after >= total_steps ||
                          watch_of(recipe, logged, total_steps, inputs).out_of_patience();
  if (!is_its_own || !ends_there) return std::nullopt;
  return FinishedRun{*logged.ended_after, "", "its weights"};
}

// Throws Error(usage) where this run would replace a result although it is not the one that goes on
// in output_dir: that has a checkpoint there, or left it elsewhere, and was allowed to replace the
// result or made it. `changes` are those since the run in output_dir.
void refuse_to_replace(const Recipe& recipe, const LoggedRun& logged, const Changes& changes,
                       const fs::path& checkpoint, int64_t total_steps, const RunInputs& inputs) {
  const fs::path output = recipe.output_dir;
  const std::string what =
      fmt::format("output_dir {} holds a result, which this run would replace", output.string());
  if (checkpoint.empty() || !lies_in(checkpoint, output)) {
    if (!checkpoint.empty() &&
        is_left_elsewhere(recipe, logged.inputs, changes, checkpoint, inputs)) {
      return;
    }
    // Of a result that was whole the log tells the end, be it by the next run
    // (train/result_move.h).
    std::string of_log;
    if (changes.texts.empty()) {
      of_log = logged.last_step == total_steps
                   ? fmt::format(
                         "the log has all {} of this run, but not its end: the result is "
                         "an earlier one, unless the log has lost lines; ",
                         counted(total_steps, "step"))
                   : "the log does not tell that this run ended; it may have lost lines; ";
    }
    throw Error(ErrorKind::usage, what,
                fmt::format("{}give another output_dir; {}", of_log, anew(recipe)));
  }
  if (changes.texts.empty()) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("{}, and {} is of another run: {}", what, checkpoint.string(),
                  fmt::join(changes.texts, ", ")),
      fmt::format("give another output_dir; {}{}; to continue the run, change nothing",
                  anew(recipe),
                  changes.has_its_states ? fmt::format(", or with resume={} continues from there",
                                                       shell_word(checkpoint.string()))
                                         : ""));
}

}  // namespace

bool has_left_of_result(const fs::path& output) {
  return !left_of_result(output, logged_run(output)).empty();
}

void refuse_other_result(const Recipe& recipe, const fs::path& checkpoint) {
  const fs::path output = recipe.output_dir;
  if (recipe.overwrite) return;
  // Whether files that have moved are still the same is known once they are read. Tokens of files
  // that are gone are of no use.
  const auto moved = [](const OptionChange& change) { return change.may_have_moved; };
  if (!has_result(output)) {
    if (lies_in(checkpoint, output)) return;
    const std::string left = left_of_result(output, logged_run(output));
    if (left.empty()) return;
    const Changes changes = changes_since(output, recipe, moved);
    if (!changes.is_same_run) refuse_to_lose(recipe, left, changes, checkpoint);
    return;
  }
  const Changes changes = changes_since(output, recipe, moved);
  if (changes.texts.empty()) return;
  const LoggedRun logged = logged_run(output);
  // With num_train_epochs, max_steps is 0 here: the steps are known only after the data are read.
  if (!logged.ended_after) {
    // The options alone already make this another run.
    refuse_to_replace(recipe, logged, changes, checkpoint, recipe.max_steps, {});
  } else if (!changes.is_same_run) {
    refuse_finished(recipe, *logged.ended_after, recipe.max_steps, changes);
  }
}

std::optional<FinishedRun> check_result(const Recipe& recipe, const fs::path& checkpoint,
                                        int64_t total_steps, const RunInputs& inputs) {
  const fs::path output = recipe.output_dir;
  if (recipe.overwrite) return std::nullopt;
  const LoggedRun logged = logged_run(output);
  if (!has_result(output)) return check_lost(recipe, logged, checkpoint, total_steps, inputs);
  if (logged.ended_after) return check_finished(recipe, logged, checkpoint, total_steps, inputs);
  refuse_to_replace(recipe, logged, changes_since(recipe, logged.inputs, inputs), checkpoint,
                    total_steps, inputs);
  return std::nullopt;
}

}  // namespace jackscrew
