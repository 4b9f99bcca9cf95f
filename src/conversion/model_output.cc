#include "conversion/model_output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "base/checked.h"
#include "base/directory.h"
#include "base/error.h"
#include "base/output_name.h"
#include "base/process_memory.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "data/data_files.h"
#include "formats/gguf.h"
#include "formats/hf_config.h"
#include "formats/peft.h"
#include "report/progress.h"
#include "session/fit.h"
#include "session/model_files.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {

namespace {

// What is there is replaced by renaming, which the system refuses for what is mounted there.
bool is_mount_point(const fs::path& path) {
  struct statx own = {}, above = {};
  const auto look = [](const fs::path& at, struct statx& found) {
    return ::statx(AT_FDCWD, at.c_str(), 0, 0, &found) == 0;
  };
  if (!look(path, own)) return false;
  if ((own.stx_attributes_mask & STATX_ATTR_MOUNT_ROOT) != 0) {
    return (own.stx_attributes & STATX_ATTR_MOUNT_ROOT) != 0;
  }
  // Linux before 5.8: what is mounted from the same file system is not seen.
  const fs::path parent = path.has_parent_path() ? path.parent_path() : ".";
  return look(fs::is_directory(path) ? path / ".." : parent, above) &&
         (own.stx_dev_major != above.stx_dev_major || own.stx_dev_minor != above.stx_dev_minor);
}

// Whether `output` names the target, and not output_dir. What the command line says comes before
// what a recipe has: a run's own names the directory of that run.
bool is_named_by_output(const OptionSet& options) {
  const auto is_asked = [&](const char* option) { return options.origin(option) == kCommandLine; };
  const bool has_output = !options.text("output").empty();
  if (!has_output || options.text("output_dir").empty()) return has_output;
  if (is_asked("output") == is_asked("output_dir")) {
    throw Error(ErrorKind::usage, "both output_dir and output are set", "keep one of them");
  }
  return is_asked("output");
}

fs::path target_of(const Recipe& recipe, const std::string& command) {
  constexpr const char* kTargets =
      "output_dir=DIR writes a Hugging Face directory, output=FILE.gguf a GGUF file";
  if (recipe.output_dir.empty() && recipe.output.empty()) {
    throw Error(ErrorKind::usage, fmt::format("{} needs an output_dir or an output", command),
                kTargets);
  }
  const std::string target = output_of(recipe.options);
  if (target == "-") {  // to other programs
    throw Error(ErrorKind::usage, "a model cannot be written to the standard output", kTargets);
  }
  return named_path(target);
}

bool has_gguf_name(const fs::path& path) {
  return lower_extension(path) == ".gguf";
}

// Endings of names that nobody gives a directory.
constexpr const char* kOtherFiles[] = {".bin",  ".safetensors", ".pt",  ".pth", ".ckpt", ".onnx",
                                       ".ggml", ".h5",          ".npz", ".pkl", ".json", ".jsonl",
                                       ".yaml", ".txt",         ".zip", ".tar", ".gz",   ".tgz"};

ModelFormat format_of(const Recipe& recipe, const fs::path& target) {
  const std::string ending = lower_extension(target);
  const bool is_gguf = is_gguf_output(recipe.format, target);
  if (!is_gguf && has_gguf_name(target)) {
    throw Error(ErrorKind::usage,
                fmt::format("format is {}, but {} has the name of a GGUF file", recipe.format,
                            target.string()),
                "leave format out, or name a directory");
  }
  // A directory's name may well have a dot: SmolLM2-1.7B.
  const bool named_otherwise = std::ranges::find(kOtherFiles, ending) != std::end(kOtherFiles);
  if (recipe.format == "auto" && is_named_by_output(recipe.options) && named_otherwise) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} has the name of a file, and a directory would be written", target.string()),
        fmt::format(
            "the name of a GGUF file ends in .gguf; output_dir={} writes a directory of this name",
            shell_word(target.string())));
  }
  return is_gguf ? ModelFormat::gguf : ModelFormat::hf;
}

// Whether an entry of a model's directory is a part of a model.
bool belongs_to_model(const fs::directory_entry& entry) {
  const fs::path name = entry.path().filename();
  std::error_code ignored;
  if (name != fs::path(kToolTemplateFile).parent_path()) {
    return is_result_file(name.string()) && !entry.is_directory(ignored);
  }
  if (!entry.is_directory(ignored)) return false;
  return std::ranges::all_of(entries_of(entry.path()), [&](const fs::directory_entry& inner) {
    return inner.path().extension() == ".jinja" && !inner.is_directory(ignored);
  });
}

// The name of an entry that is no part of a model; empty if there is none.
std::string foreign_entry(const fs::path& directory) {
  for (const fs::directory_entry& entry : entries_of(directory)) {
    if (!belongs_to_model(entry)) return entry.path().filename().string();
  }
  return {};
}

// What is at a path, where something else is to be written.
const char* kind_of(const fs::file_status& status) {
  if (fs::is_directory(status)) return "a directory";
  if (fs::is_regular_file(status)) return "a file";
  if (fs::is_symlink(status)) return "a symbolic link";
  return "no ordinary file";
}

}  // namespace

std::vector<std::string> sources_of(const Recipe& recipe) {
  std::vector<std::string> sources = {recipe.model, recipe.adapter};
  for (const auto* more : {&recipe.operands, &recipe.adapters, &recipe.data, &recipe.eval_data}) {
    sources.insert(sources.end(), more->begin(), more->end());
  }
  if (!is_tokenizer_path(recipe.tokenizer)) return sources;
  sources.push_back(recipe.tokenizer);
  std::error_code missing;  // reading it says so
  const fs::path named = fs::absolute(named_path(recipe.tokenizer), missing);
  if (missing || fs::is_directory(named)) return sources;
  // A file goes with the directory that it is in; it may be a link, as in Hugging Face's cache.
  sources.push_back(named.parent_path().string());
  const fs::path file = fs::canonical(named, missing);
  if (!missing) sources.push_back(file.parent_path().string());
  return sources;
}

std::string output_of(const OptionSet& options) {
  return options.text(is_named_by_output(options) ? "output" : "output_dir");
}

bool is_gguf_output(const std::string& format, const fs::path& target) {
  return format.starts_with("gguf") || (format == "auto" && has_gguf_name(target));
}

void require_no_writer(const fs::path& output) {
  const fs::path named = named_path(output);
  for (const char* suffix : {"", kUnfinishedSuffix}) {
    const fs::path directory = named.string() + suffix;
    // A lock that is given back at once; none on what this process may not open.
    std::error_code error;
    if (fs::is_directory(fs::symlink_status(directory, error)) &&
        ::access(directory.c_str(), R_OK) == 0) {
      const DirectoryLock probe(directory);
    }
  }
  require_no_claim(named);
}

bool is_result_file(const std::string& name) {
  static const std::vector<std::string> kNames = {"config.json", kGenerationConfig, kAdapterConfig,
                                                  kPeftWeightsFile};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  if (std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end()) {
    return true;
  }
  return name.starts_with("model") &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
}

bool reads_from(const fs::path& source, const fs::path& directory) {
  std::error_code unreadable;
  for (const fs::directory_entry& entry : entries_of(source, unreadable)) {
    if (!entry.is_symlink(unreadable)) continue;
    const fs::path file = fs::canonical(entry.path(), unreadable);
    if (!unreadable && is_same_file(file.parent_path(), directory)) return true;
  }
  return false;
}

void remove_model(const fs::path& path) {
  std::error_code ignored;  // what cannot be looked at cannot be removed either
  if (!fs::is_directory(fs::symlink_status(path, ignored))) return remove_tree(path);
  for (const fs::directory_entry& entry : entries_of(path)) {
    if (belongs_to_model(entry)) remove_tree(entry.path());
  }
  fs::remove(path, ignored);  // it may hold files of others
}

void remove_replaced(const fs::path& replaced, const fs::path& output) try {
  remove_model(replaced);
  for (const fs::directory_entry& entry : entries_of(replaced)) {
    rename_file(entry.path(), output / entry.path().filename());
  }
  remove_model(replaced);
} catch (const Error& error) {
  warn(fmt::format("{} is written, but of what stood there something is left in {}: {}",
                   output.string(), replaced.string(), error.what()));
}

ModelOutput::ModelOutput(const Recipe& recipe, const std::string& command)
    : target_(target_of(recipe, command)),
      format_(format_of(recipe, target_)),
      sources_(sources_of(recipe)),
      recipe_(recipe) {
  check();
  require_temporary_name(target_);
  require_no_writer(target_);
}

void ModelOutput::check() const {
  const std::string name = target_.string();
  for (const std::string& source : sources_) {
    if (is_same_file(target_, source) || reads_from(source, target_)) {
      throw Error(ErrorKind::usage, fmt::format("{} is what is read, and would be replaced", name),
                  "give another output");
    }
    refuse_temporary(source, target_);
  }
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target_, error);
  if (!fs::exists(status)) return;
  const bool is_directory = fs::is_directory(status);
  const bool wants_directory = format_ == ModelFormat::hf;
  if (is_directory != wants_directory || (!is_directory && !fs::is_regular_file(status))) {
    throw PlaceTaken(fmt::format("{} is {}, where a {} is to be written", name, kind_of(status),
                                 wants_directory ? "directory" : "GGUF file"),
                     "give another output");
  }
  if (is_directory && is_mount_point(target_)) {
    throw PlaceTaken(
        fmt::format("{} is a mounted file system, which cannot be replaced by a model", name),
        fmt::format("give a directory in it: {}/model", name));
  }
  if (is_mount_point(target_)) {
    throw PlaceTaken(fmt::format("{} is a mounted file, which cannot be replaced by a model", name),
                     "give another output");
  }
  if (is_directory && is_same_file(target_, ".")) {
    // By renaming, too: the shell would be in a directory that is gone.
    throw PlaceTaken(
        fmt::format("{} is the current directory, which cannot be replaced by a model", name),
        fmt::format("give a directory in it: {}/model", name));
  }
  if (is_directory && entries_of(target_).empty()) return;
  const std::string foreign = is_directory ? foreign_entry(target_) : std::string();
  if (!foreign.empty()) {
    throw PlaceTaken(
        fmt::format("{} holds {}, which is not part of a model and would be lost", name, foreign),
        "give another output, or move it away");
  }
  if (!is_directory && !is_gguf_file(target_) && !fs::is_empty(target_)) {
    throw PlaceTaken(fmt::format("{} is not a GGUF file, and would be lost", name),
                     "give another output, or move it away");
  }
  if (recipe_.overwrite) return;
  const std::string unfinished = name + kUnfinishedSuffix;
  throw PlaceTaken(
      fmt::format("{} exists already", name),
      "give another output, or overwrite=true to replace it" +
          (fs::exists(unfinished, error)
               ? fmt::format("; {0} is left of a quantize that was stopped: if {1} is its "
                             "result already, remove {0}",
                             unfinished, name)
               : ""));
}

void ModelOutput::require_space(const FileSizes& files, int64_t beside) const {
  if (const auto limit = file_size_limit(); limit && files.largest > *limit) {
    throw Error(
        ErrorKind::generic,
        fmt::format("{} needs a file of {}, but no file may have more than {}", target_.string(),
                    human_bytes(files.largest, *limit), human_bytes(*limit, files.largest)),
        "raise the file size limit (ulimit -f) and run again");
  }
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  make_directories(parent);
  std::error_code unknown;
  const fs::space_info space = fs::space(parent, unknown);
  if (!unknown && std::cmp_less(space.available, files.all)) {
    throw Error(
        ErrorKind::generic,
        fmt::format("{} needs {}, but only {} is free on its disk", target_.string(),
                    human_bytes(files.all), human_bytes(static_cast<int64_t>(space.available))),
        "free some of it, or give an output on another disk");
  }
  if (!files_take_memory(parent)) return;
  require_host_memory(
      checked_add(files.all, beside), recipe_,
      fmt::format("{} is in memory (tmpfs): give an output on a disk", target_.string()));
}

void ModelOutput::begin(const FileSizes& files, int64_t beside) {
  require_space(files, beside);
  if (format_ == ModelFormat::hf) {
    directory_.emplace(target_);
  } else {
    file_.emplace(target_);
  }
  check();  // another process may just have finished there
}

void ModelOutput::require_in_place() const {
  if (file_) return file_->require_in_place();
  directory_->require_in_place();
}

int64_t ModelOutput::written_bytes() const {
  require_in_place();
  return file_ ? static_cast<int64_t>(fs::file_size(path())) : bytes_of_files(path());
}

void ModelOutput::commit() {
  if (directory_) directory_->sync();  // first: it takes a while, and others may come meanwhile
  check();
  if (file_) return file_->commit();
  directory_->commit([&](const fs::path& replaced) { remove_replaced(replaced, target_); });
}

}  // namespace jackscrew
