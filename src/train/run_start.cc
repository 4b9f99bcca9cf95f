#include "train/run_start.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/directory.h"
#include "base/error.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "formats/checkpoint.h"
#include "report/progress.h"
#include "session/adapter.h"
#include "session/place.h"
#include "train/output_dir.h"
#include "train/resume.h"
#include "train/run_exports.h"

namespace jackscrew {

namespace {

// The checkpoint that the recipe asks for; empty: none.
fs::path wanted_checkpoint(const Recipe& recipe) {
  if (recipe.resume == "never") return {};
  if (recipe.resume != "auto") return recipe.resume;
  if (recipe.overwrite) return {};
  const std::vector<fs::path> checkpoints = list_checkpoints(recipe.output_dir);
  return checkpoints.empty() ? fs::path() : checkpoints.back();
}

// What else there is to do where a checkpoint cannot be gone on from.
const char* without_it(const Recipe& recipe) {
  if (!names_checkpoint(recipe))
    return "give another output_dir, or start over with overwrite=true";
  return recipe.overwrite ? "or leave resume out and give another output_dir: in this one "
                            "overwrite=true then starts over and removes a run that is there"
                          : "or leave resume out";
}

// What has changed since a checkpoint or run, without the length: a longer run goes on from the
// same states. `when` says in their text when the other values were.
std::vector<std::string> changes_but_length(const fs::path& directory, const Recipe& recipe,
                                            const char* when) {
  std::vector<std::string> texts;
  for (const OptionChange& change : changed_options(directory, recipe.options)) {
    if (!is_length(change.name)) texts.push_back(change.text(when));
  }
  return texts;
}

// Whether output_dir has another run than this one, which goes on from a checkpoint of elsewhere:
// evaluations in that run's log, and its best checkpoint, would be taken for this one's. Throws
// Error(usage) unless the recipe replaces it.
bool replaces_another(const Recipe& recipe, const fs::path& checkpoint) {
  const fs::path output = recipe.output_dir;
  if (lies_in(checkpoint, output) || !fs::exists(output / kRecipeName)) return false;
  std::vector<std::string> changes;
  if (is_empty_recipe(output / kRecipeName)) {
    changes.push_back(fmt::format("its {} is damaged: it is empty", kRecipeName));
  } else {
    changes = changes_but_length(output, recipe, "then");
  }
  if (changes.empty()) return false;
  if (recipe.overwrite) return true;
  throw Error(ErrorKind::usage,
              fmt::format("output_dir {} holds another run than the one that continues from {}: {}",
                          output.string(), checkpoint.string(), fmt::join(changes, ", ")),
              "give another output_dir; with overwrite=true its log and checkpoints start over");
}

// The step of a checkpoint that can be used as far as its small files tell. Throws Error.
int64_t usable_step(const fs::path& checkpoint) {
  const int64_t step = read_checkpoint_info(checkpoint).step;
  if (!is_there(checkpoint / kRecipeName)) {
    fail(ErrorKind::model, "{} has no {}", checkpoint.string(), kRecipeName);
  }
  if (const fs::path recipe = checkpoint / kRecipeName; is_empty_recipe(recipe)) {
    fail(ErrorKind::model, "{} is damaged: it is empty", recipe.string());
  }
  return step;
}

// The newest usable checkpoint before `checkpoint`; empty where there is none.
fs::path usable_before(const fs::path& checkpoint, const fs::path& output) try {
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
} catch (const Error&) {  // it words a hint, and what went wrong before says more
  return {};
}

// Throws `error`, which says why the checkpoint cannot be used. Where it was taken because it is
// the newest and is damaged, the hint names an older one: that is taken only if the recipe names
// it. What the system did not let be read may be whole.
[[noreturn]] void refuse_checkpoint(const fs::path& checkpoint, const Recipe& recipe,
                                    const Error& error) {
  const bool damaged = error.kind() == ErrorKind::model || error.kind() == ErrorKind::data;
  if (recipe.resume != "auto" || !damaged || is_unreadable(error)) throw Error(error);
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
  } catch (const NewerCheckpoint&) {
    throw;  // to start over would throw it away
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
  const bool has_one = !list_checkpoints(output).empty() || has_result(output) ||
                       has_result_to_move(output) || has_left_of_result(output);
  if (!has_one) return {};
  return output / kRecipeName;
}

// The lanes of that run: with the same lanes the bits are the same, whatever the number of ranks.
std::optional<std::string> lanes_before(const Recipe& recipe) {
  const auto lanes = saved_value(recipe_before(recipe), "data_parallel");
  return lanes && parse_int(*lanes).value_or(0) > 0 ? lanes : std::nullopt;
}

// Whether output_dir is that of the run that wrote the checkpoint.
bool is_own(const fs::path& checkpoint, const fs::path& output) {
  if (lies_in(checkpoint, output)) return true;
  // Its recipe may name output_dir from another working directory: a run's it must be.
  const auto written_by = saved_value(checkpoint / kRecipeName, "output_dir");
  return written_by && is_same_file(*written_by, output) && fs::exists(output / kRecipeName);
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
        fmt::format("start {}, or {}",
                    Layout::ranks_text(narrow<int>(recipe.pipeline_stages), recipe.data_parallel),
                    recipe.resume == "auto" ? "give another output_dir; overwrite=true starts over"
                                            : "leave resume out"));
  }
}

// For a hint that asks for more steps: what the checkpoint's states may not fit then.
std::string and_what_has_changed(const fs::path& checkpoint, const Recipe& recipe) {
  const std::vector<std::string> changes = changes_but_length(checkpoint, recipe, kCheckpointTime);
  if (changes.empty()) return {};
  return fmt::format(" (and {})", fmt::join(changes, ", "));
}

// The warning of a run that writes files of its result again. Throws Error(model) where it would
// train anew over weights that are there, because another file is gone.
std::string what_is_written_again(const FinishedRun& finished, const fs::path& checkpoint,
                                  const fs::path& output) {
  if (!has_result(output)) {
    return fmt::format("the weights of the result in {} are gone: this run writes them again",
                       output.string());
  }
  const std::string what = fmt::format("the result in {} is not whole: {} is missing",
                                       output.string(), finished.missing);
  if (!is_same_file(checkpoint, checkpoint_path(output, finished.step))) {
    throw Error(ErrorKind::model, what,
                "move it back, or give another output_dir; overwrite=true starts over and "
                "replaces the result");
  }
  return fmt::format("{}; it is written again from {}", what, checkpoint.string());
}

}  // namespace

std::string how_to_go_on(const Recipe& recipe, const RunStart& start, const fs::path& checkpoint) {
  // Where nothing was saved since, the command begins where this one did.
  const std::string again = checkpoint == start.checkpoint
                                ? "run the same command again"
                                : same_command_again(recipe, checkpoint.parent_path());
  return fmt::format("{} to continue from {}", again, checkpoint.string());
}

std::string hint_after_stop(int ranks, const std::string& hint) {
  // mpirun sends SIGTERM where another rank has failed, too.
  return ranks == 1 ? hint : "if another rank has failed, mend that first; " + hint;
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
  const std::vector<std::string> changes = changes_but_length(checkpoint, recipe, kCheckpointTime);
  if (changes.empty() || is_unreadable(error)) refuse_checkpoint(checkpoint, recipe, error);
  throw Error(error.kind(), error.what(),
              fmt::format("{}; undo that, {}", fmt::join(changes, ", "), without_it(recipe)));
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

ChatFormat settle_chat_date(Recipe& recipe, const Tokenizer& tokenizer) {
  ChatFormat format = recipe_chat_format(recipe, tokenizer);
  if (recipe.chat_date || !format.uses_clock()) return format;
  std::string day = saved_value(recipe_before(recipe), "chat_date").value_or("today");
  if (!parse_chat_date(day)) {
    day = fmt::format("{:04}-{:02}-{:02}", format.now.year, format.now.month, format.now.day);
    warn("the chat template prints the date; to repeat this run, set chat_date=" + day);
  }
  recipe.options.set("chat_date", day, "the first start");
  recipe.chat_date = parse_chat_date(day);
  return recipe_chat_format(recipe, tokenizer);
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

Error failed_after_the_result(const Error& error, const Recipe& recipe, const fs::path& output_dir,
                              bool ranks_lost) {
  const bool gives_exports =
      ranks_lost && error.kind() == ErrorKind::device && lacks_exports(recipe, output_dir);
  return {
      error.kind(),
      fmt::format("the result is complete in {}, but {}", output_dir.string(), error.what()),
      gives_exports ? same_command_again(recipe, output_dir) + " for the exports" : error.hint()};
}

Schedule run_schedule(const Recipe& recipe, int64_t total_steps) {
  const int64_t warmup_steps =
      recipe.warmup_steps.value_or(warmup_from_ratio(recipe.warmup_ratio, total_steps));
  if (warmup_steps >= total_steps) {
    throw Error(ErrorKind::usage,
                fmt::format("warmup_steps {} is not less than the {} of this run", warmup_steps,
                            counted(total_steps, "step")),
                fmt::format("the learning rate would never reach its peak; set warmup_steps to at "
                            "most {}",
                            total_steps - 1));
  }
  return {recipe.lr_schedule, recipe.learning_rate, warmup_steps, total_steps};
}

void refuse_other_recipe(const Recipe& recipe) {
  refuse_other_result(recipe, wanted_checkpoint(recipe));
}

RunStart find_start(Recipe recipe, const fs::path& output, int64_t total_steps,
                    const RunInputs& inputs) {
  recipe.output_dir = output.string();
  RunStart start{wanted_checkpoint(recipe), {}};
  start.finished = check_result(recipe, start.checkpoint, total_steps, inputs);
  if (start.finished && !start.finished->missing.empty()) {
    start.writes_again = what_is_written_again(*start.finished, start.checkpoint, output);
    start.finished.reset();
  }
  // No error: a command that is repeated ends well, though its checkpoint be pruned since.
  std::error_code unreachable;
  if (start.finished && names_checkpoint(recipe) && !fs::exists(start.checkpoint, unreachable)) {
    warn(fmt::format("there is no checkpoint {} (resume); the run in {} has ended, and needs none",
                     start.checkpoint.string(), output.string()));
  }
  if (start.finished || start.checkpoint.empty()) return start;
  const int64_t step = step_of(start.checkpoint, recipe);
  if (step > total_steps) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is at step {}, beyond the {} of this run",
                            start.checkpoint.string(), step, counted(total_steps, "step")),
                fmt::format("raise max_steps{}, {}", and_what_has_changed(start.checkpoint, recipe),
                            without_it(recipe)));
  }
  start.replaces_another = replaces_another(recipe, start.checkpoint);
  start.is_own = !start.replaces_another && is_own(start.checkpoint, output);
  return start;
}

}  // namespace jackscrew
