#include "train/result_move.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <tuple>
#include <vector>

#include "base/console.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/text.h"
#include "conversion/model_output.h"
#include "formats/checkpoint.h"
#include "formats/peft.h"
#include "report/event_log.h"
#include "report/report.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/earlier_result.h"
#include "train/output_dir.h"
#include "train/resume.h"
#include "train/run_exports.h"
#include "train/run_log.h"
#include "train/run_watch.h"
#include "train/saving.h"

namespace jackscrew {

namespace {

constexpr std::array<std::string_view, 2> kDescriptions = {kAdapterConfig, "config.json"};

bool is_description(const fs::path& name) {
  return std::ranges::find(kDescriptions, name.string()) != kDescriptions.end();
}

// Removes what of an earlier result would pass for a part of the one in `whole`: its description,
// and files that this one does not have.
void remove_earlier(const fs::path& whole, const fs::path& output) {
  std::error_code ignored;  // what cannot be looked at is no file of a result
  for (const std::string_view name : kDescriptions) {
    if (fs::is_regular_file(output / name, ignored)) remove_tree(output / name);
  }
  const auto remove_unless_new = [&](const fs::path& name) {
    if (!fs::exists(whole / name, ignored)) remove_tree(output / name);
  };
  for (const fs::directory_entry& entry : entries_of(output)) {
    const fs::path name = entry.path().filename();
    if (is_result_file(name.string()) && entry.is_regular_file(ignored)) remove_unless_new(name);
  }
  for (const char* name : {kDefaultTemplateFile, kToolTemplateFile}) remove_unless_new(name);
}

// The files in a directory and below it, by the order in which they move.
std::vector<fs::path> files_to_move(const fs::path& from) {
  std::vector<fs::path> paths;
  std::error_code error;
  for (fs::recursive_directory_iterator at(from, error), end; !error && at != end;) {
    if (at->is_regular_file(error)) paths.push_back(at->path().lexically_relative(from));
    if (!error) at.increment(error);
  }
  if (error) fail(ErrorKind::generic, "cannot list {}: {}", from.string(), error.message());
  const auto turn = [](const fs::path& path) {
    return std::tuple(is_description(path), path.extension() == ".safetensors", path);
  };
  std::ranges::sort(paths, {}, turn);
  return paths;
}

void move_files(const fs::path& from, const fs::path& to) {
  std::error_code error;
  for (const fs::path& path : files_to_move(from)) {
    if (path.has_parent_path()) fs::create_directory(to / path.parent_path(), error);
    fs::rename(from / path, to / path, error);
    if (error) {
      throw Error(
          ErrorKind::generic,
          fmt::format("cannot move {} to {}: {}; of the result, what is not there yet is in {}",
                      path.string(), to.string(), error.message(), from.string()),
          "run the same command again, which moves the rest");
    }
  }
  sync_renamed(to, to);
}

// The step of the best evaluation that was saved, if the run, which made so many steps, took its
// states as result.
std::optional<int64_t> best_step(const fs::path& output, int64_t steps) {
  const auto asked_for = saved_value(output / kRecipeName, "load_best_model_at_end");
  if (!asked_for || !parse_bool(*asked_for).value_or(false)) return std::nullopt;
  RunWatch watch({});
  watch.replay(output);
  const int64_t step = watch.result_step(steps);
  return step != steps ? std::optional(step) : std::nullopt;
}

// Writes to the log what the run that made the result could not: that it ended.
void log_end(const fs::path& output) {
  if (!is_there(output / kLogName)) return;
  const LoggedRun run = logged_run(output);
  if (run.ended_after) return;
  // Earlier versions left such files beside runs that went on: those are not at their end.
  const auto patience = saved_value(output / kRecipeName, "early_stopping_patience");
  const bool may_stop_early = patience && parse_int(*patience).value_or(0) > 0;
  if (run.last_step < run.total_steps && !may_stop_early) return;
  EventLog log(output / kLogName, std::numeric_limits<int64_t>::max());
  const int64_t steps = log.last_step();
  if (steps == 0) return;  // somebody has put another log there
  log.write(EventKind::end, steps,
            end_event(output, run.samples, JsonObject(), best_step(output, steps)));
}

// From the moment at which the result is whole: may be repeated after it was interrupted.
void replace_earlier(const fs::path& output, bool keeps_exports) {
  const fs::path whole = whole_result(output);
  // First, so that where they cannot be removed the result that they are of stays whole.
  if (!keeps_exports) remove_exports(output);
  remove_earlier(whole, output);
  remove_tree(moving_result(output));  // of another result, which this one replaces
  rename_file(whole, moving_result(output));
}

}  // namespace

void move_result(const fs::path& output_dir, bool keeps_exports) {
  replace_earlier(output_dir, keeps_exports);
  move_files(moving_result(output_dir), output_dir);
}

void end_move(const fs::path& output_dir) {
  std::error_code ignored;  // the next run that claims the directory tries again
  fs::remove_all(moving_result(output_dir), ignored);
}

void complete_move(const fs::path& output_dir) {
  if (!has_result_to_move(output_dir)) return;
  // Its place alone may be left of a run that ended.
  if (is_there(whole_result(output_dir)) || !files_to_move(moving_result(output_dir)).empty()) {
    warn(
        fmt::format("a run in {} was stopped while it moved its result there: this moves the rest "
                    "of it",
                    output_dir.string()));
  }
  log_end(output_dir);
  if (is_there(whole_result(output_dir))) replace_earlier(output_dir, false);
  move_files(moving_result(output_dir), output_dir);
  end_move(output_dir);
  write_if_possible(kReportName, [&] {
    if (is_there(output_dir / kLogName)) write_report(output_dir);
  });
}

}  // namespace jackscrew
