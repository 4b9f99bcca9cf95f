#include "train/output_dir.h"

#include <algorithm>
#include <string>

#include "base/directory.h"
#include "base/error.h"
#include "base/list_text.h"
#include "base/shell_word.h"
#include "data/token_store.h"
#include "formats/checkpoint.h"
#include "formats/peft.h"
#include "report/event_log.h"
#include "report/progress.h"
#include "report/report.h"
#include "session/plan.h"
#include "session/session.h"
#include "text/tokenizer/tokenizer_files.h"
#include "train/result_move.h"

namespace jackscrew {

namespace {

bool is_run(const fs::path& output) {
  return fs::exists(output / kLogName) ||
         std::ranges::any_of(list_checkpoints(output), is_checkpoint);
}

// Whether a directory holds nothing but tokens: of a run that was killed before it had a log.
bool has_only_tokens(const fs::path& directory) {
  if (!fs::is_directory(directory)) return false;
  return std::ranges::all_of(entries_of(directory), [](const fs::directory_entry& entry) {
    return is_token_file(entry.path());
  });
}

bool run_writes(const std::string& name) {
  return is_result_file(name) || name == kRecipeName || name == kReportName || name == "tokens" ||
         name == exports_directory({}) || name == fs::path(kToolTemplateFile).parent_path() ||
         name.starts_with("checkpoint-");
}

// `source` is a directory, or a file in one; the file may be a link into another directory.
void refuse_source(const fs::path& output, const std::string& source, const char* option) {
  std::error_code missing;
  const fs::path place = fs::canonical(source, missing);
  if (source.empty() || missing) return;  // the name of a shape
  if (is_same_file(output, place)) {
    throw Error(ErrorKind::usage,
                fmt::format("output_dir {} is the {} itself, which the result would replace",
                            output.string(), option),
                "give another output_dir");
  }
  if (reads_from(place, output)) {
    throw Error(ErrorKind::usage,
                fmt::format("the {} is read from output_dir {} through links, and the result would "
                            "replace it",
                            option, output.string()),
                "give another output_dir");
  }
  if (fs::is_directory(place)) return;
  const fs::path named = fs::path(source).has_parent_path() ? fs::path(source).parent_path() : ".";
  if (!is_same_file(output, named) && !is_same_file(output, place.parent_path())) return;
  throw Error(ErrorKind::usage,
              fmt::format("output_dir {} is where the {} is read from: {}", output.string(), option,
                          place.string()),
              "give another output_dir: a result may not be written beside its source");
}

// All files of a directory of data are read, so those of the run would be read as data.
void refuse_data(const fs::path& output, const std::string& data) {
  if (!fs::is_directory(data) || !is_same_file(output, data)) return;
  throw Error(ErrorKind::usage,
              fmt::format("output_dir {} is a directory of data: what the run writes there would "
                          "be read as data",
                          output.string()),
              "give another output_dir");
}

}  // namespace

bool has_result(const fs::path& output_dir) {
  for (const fs::directory_entry& entry : entries_if_directory(output_dir)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".safetensors" && is_result_file(name.string())) return true;
  }
  return false;
}

std::string result_setting(const fs::path& output_dir) {
  const bool adapter = fs::exists(output_dir / kAdapterConfig);
  return fmt::format("{}={}", adapter ? "adapter" : "model",
                     shell_word(adapter ? list_item(output_dir.string()) : output_dir.string()));
}

void check_output_dir(const Recipe& recipe) {
  const fs::path output(recipe.output_dir);
  std::error_code error;
  const fs::file_status status = fs::status(output, error);
  if (!fs::exists(status) && fs::is_symlink(fs::symlink_status(output, error))) {
    throw Error(ErrorKind::usage,
                fmt::format("output_dir {} is a link to {}, which cannot be reached",
                            output.string(), fs::read_symlink(output, error).string()),
                "make that directory, or give another output_dir");
  }
  if (!fs::exists(status)) return;
  if (!fs::is_directory(status)) {
    throw Error(ErrorKind::usage, fmt::format("output_dir {} is not a directory", output.string()),
                "give the path of a directory, which is created where it is missing");
  }
  if (is_same_file(output, "/")) {
    throw Error(ErrorKind::usage,
                fmt::format("output_dir {} is the root directory", output.string()),
                "give a directory of the run's own");
  }
  refuse_source(output, recipe.model, "model");
  refuse_source(output, recipe.adapter, "adapter");
  refuse_source(output, original_model(recipe), "original model");
  for (const auto* files : {&recipe.data, &recipe.eval_data}) {
    for (const std::string& file : *files) refuse_data(output, file);
  }
  const fs::path tokens = tokens_directory(output);
  if (fs::is_symlink(fs::symlink_status(tokens, error))) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is a link: a run that shares its directory would replace the "
                            "tokens of this one",
                            tokens.string()),
                "remove the link; for another disk, give an output_dir there");
  }
  if (is_run(output)) return;
  for (const fs::directory_entry& entry : entries_of(output)) {
    const std::string name = entry.path().filename().string();
    if (!run_writes(name)) continue;
    if (entry.path() == tokens && has_only_tokens(entry.path())) continue;
    throw Error(ErrorKind::usage,
                fmt::format("output_dir {} has no {} of a run, and its {} would be replaced",
                            output.string(), kLogName, name),
                "give another output_dir, or move it away");
  }
}

namespace {

// Removes what has such a name in a directory.
template <class IsName>
void remove_named(const fs::path& directory, const IsName& is_name) {
  std::error_code ignored;
  for (const fs::directory_entry& entry : entries_of(directory, ignored)) {
    if (is_name(entry.path().filename().string())) fs::remove_all(entry.path(), ignored);
  }
}

// Masters of a run that was killed, which may have had more ranks than this one. Checkpoints have
// files of their own.
void remove_masters(const fs::path& output) {
  const std::string masters = masters_directory({}, 0).string();
  remove_named(output, [&](const std::string& name) { return name.starts_with(masters); });
}

// Tokens of one that was killed while it read its data, which may have been more files.
void remove_unfinished_tokens(const fs::path& output) {
  remove_named(tokens_directory(output),
               [](const std::string& name) { return name.ends_with(kTemporarySuffix); });
}

// Removes the files of a run that was killed while it wrote the result or one of its own files. A
// result that is whole has no such suffix. Earlier versions wrote it by the second name.
void remove_unfinished_files(const fs::path& output) {
  std::error_code ignored;
  for (const fs::path& whole : {whole_result(output), moving_result(output), output / kReportName,
                                output / kRecipeName, output / kLogName}) {
    fs::remove_all(whole.string() + kTemporarySuffix, ignored);
  }
}

}  // namespace

OutputClaim::OutputClaim(const fs::path& output_dir)
    : path_(output_dir), is_new_(!fs::exists(output_dir)) {
  claim();
  remove_unfinished_checkpoints(path_);
  remove_masters(path_);
  remove_unfinished_tokens(path_);
  remove_unfinished_files(path_);
  complete_move(path_);
}

void OutputClaim::claim() {
  std::error_code error;
  fs::create_directories(path_, error);
  if (error) {
    throw Error(ErrorKind::generic,
                fmt::format("cannot create {}: {}", path_.string(), error.message()),
                "give an output_dir in a place that can be written to");
  }
  require_no_writer(path_);
  directory_ = DirectoryHandle(path_);
  lock_ = DirectoryLock(path_);
}

const fs::path* OutputClaim::find() {
  if (directory_.is_at(path_)) return &path_;
  const std::optional<fs::path> now = directory_.path();
  if (!now) return nullptr;
  if (*now != path_) {
    warn(fmt::format("output_dir {} was moved to {}: the run continues there", path_.string(),
                     now->string()));
    path_ = *now;
  }
  return &path_;
}

fs::path OutputClaim::present(const fs::path& path) {
  if (path.empty()) return path;
  const fs::path* found = find();
  std::error_code ignored;
  if (found == nullptr || fs::exists(path, ignored)) return path;
  const fs::path now = *found / path.filename();
  return fs::exists(now, ignored) ? now : path;
}

const fs::path& OutputClaim::path() {
  if (const fs::path* found = find()) return *found;
  std::error_code error;
  const bool is_there = fs::exists(path_, error);
  if (error) fail(ErrorKind::generic, "cannot reach {}: {}", path_.string(), error.message());
  if (!is_there) {
    warn(fmt::format("output_dir {} was removed: creating it again", path_.string()));
    claim();
    return path_;
  }
  throw Error(
      ErrorKind::generic,
      fmt::format("the directory of this run is gone, and {} is another one", path_.string()),
      fmt::format("move {} away; this run then creates its own again", path_.string()));
}

OutputClaim::~OutputClaim() {
  if (!is_new_ || !directory_.is_at(path_)) return;
  std::error_code ignored;
  fs::remove_all(tokens_directory(path_), ignored);
  fs::remove(path_, ignored);
}

fs::path tokens_directory(const fs::path& output_dir) {
  return output_dir / "tokens";
}

std::string token_file_name(DataPart part, size_t number) {
  return fmt::format("{}-{}.tokens", part == DataPart::train ? "train" : "eval", number);
}

namespace {

// Whether a name is one that token_file_name() gives.
bool is_token_file_name(std::string_view name) {
  constexpr std::string_view kEnd = ".tokens";
  if (!name.starts_with("train-") && !name.starts_with("eval-")) return false;
  if (!name.ends_with(kEnd)) return false;
  name.remove_suffix(kEnd.size());
  name.remove_prefix(name.find('-') + 1);
  return !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
}

}  // namespace

void remove_earlier_run(const fs::path& output_dir, std::span<const std::string> token_files) {
  remove_checkpoints_after(output_dir, -1);
  const fs::path tokens = tokens_directory(output_dir);
  remove_named(tokens, [&](const std::string& name) {
    return is_token_file_name(name) && std::ranges::find(token_files, name) == token_files.end();
  });
  std::error_code ignored;
  fs::remove(tokens, ignored);  // if nothing is left in it
}

fs::path exports_directory(const fs::path& output_dir) {
  return output_dir / "exports";
}

fs::path whole_result(const fs::path& output_dir) {
  return output_dir / kWholeResult;
}

fs::path moving_result(const fs::path& output_dir) {
  return output_dir / kMovingResult;
}

}  // namespace jackscrew
