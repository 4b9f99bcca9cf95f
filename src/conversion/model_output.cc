#include "conversion/model_output.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/text.h"
#include "formats/hf_config.h"
#include "formats/peft.h"
#include "text/tokenizer/tokenizer_files.h"

namespace jackscrew {

namespace {

bool is_same_file(const fs::path& a, const fs::path& b) {
  std::error_code missing;
  return fs::equivalent(a, b, missing) && !missing;
}

fs::path target_of(const Recipe& recipe, const std::string& command) {
  const bool directory = !recipe.output_dir.empty(), file = !recipe.output.empty();
  if (directory && file) {
    throw Error(ErrorKind::usage, "both output_dir and output are set", "keep one of them");
  }
  if (!directory && !file) {
    throw Error(ErrorKind::usage, fmt::format("{} needs an output_dir or an output", command),
                "output_dir=DIR writes a Hugging Face directory, output=FILE.gguf a GGUF file");
  }
  fs::path target = directory ? recipe.output_dir : recipe.output;
  // A trailing slash would become the name of the temporary beside the target.
  while (!target.has_filename() && target.has_parent_path() && target != target.root_path()) {
    target = target.parent_path();
  }
  return target;
}

ModelFormat format_of(const Recipe& recipe, const fs::path& target) {
  const bool named_so = target.extension() == ".gguf";
  if (recipe.format == "hf" && named_so) {
    throw Error(ErrorKind::usage,
                fmt::format("format is hf, but {} has the name of a GGUF file", target.string()),
                "leave format out, or name a directory");
  }
  const bool file = recipe.format.starts_with("gguf") || (recipe.format == "auto" && named_so);
  return file ? ModelFormat::gguf : ModelFormat::hf;
}

// The name of an entry that is no part of a model; empty if there is none.
std::string foreign_entry(const fs::path& directory) {
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (!is_result_file(name) && name != fs::path(kToolTemplateFile).parent_path()) return name;
  }
  return {};
}

}  // namespace

bool is_result_file(const std::string& name) {
  static const std::vector<std::string> kNames = {"config.json", kGenerationConfig, kAdapterConfig,
                                                  "adapter_model.safetensors"};
  if (std::find(kNames.begin(), kNames.end(), name) != kNames.end()) return true;
  if (std::find(kTokenizerFiles.begin(), kTokenizerFiles.end(), name) != kTokenizerFiles.end()) {
    return true;
  }
  return name.starts_with("model") &&
         (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json"));
}

ModelOutput::ModelOutput(const Recipe& recipe, const std::string& command)
    : target_(target_of(recipe, command)), format_(format_of(recipe, target_)) {
  check(recipe);
}

void ModelOutput::check(const Recipe& recipe) const {
  const std::string name = target_.string();
  std::vector<std::string> sources = recipe.adapters;
  sources.push_back(recipe.model);
  for (const std::string& source : sources) {
    if (!is_same_file(target_, source)) continue;
    throw Error(ErrorKind::usage, fmt::format("{} is what is read, and would be replaced", name),
                "give another output");
  }
  std::error_code error;
  const fs::file_status status = fs::symlink_status(target_, error);
  if (!fs::exists(status)) return;
  const bool is_directory = fs::is_directory(status);
  const bool wants_directory = format_ == ModelFormat::hf;
  if (is_directory != wants_directory || (!is_directory && !fs::is_regular_file(status))) {
    throw Error(ErrorKind::usage,
                fmt::format("{} is {}, where a {} is to be written", name,
                            is_directory ? "a directory" : "no directory",
                            wants_directory ? "directory" : "GGUF file"),
                "give another output");
  }
  if (is_directory && fs::is_empty(target_)) return;
  if (!recipe.overwrite) {
    throw Error(ErrorKind::usage, fmt::format("{} exists already", name),
                "give another output, or overwrite=true to replace it");
  }
  if (!is_directory) return;
  if (const std::string foreign = foreign_entry(target_); !foreign.empty()) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} holds {}, which is no part of a model and would be lost", name, foreign),
        "give another output, or move it away");
  }
}

ModelOutput::~ModelOutput() {
  std::error_code ignored;
  if (format_ == ModelFormat::gguf && !committed_) fs::remove(path(), ignored);
}

fs::path ModelOutput::path() const {
  return directory_ ? directory_->path() : fs::path(target_.string() + ".part");
}

void ModelOutput::require_space(int64_t bytes) const {
  const fs::path parent = target_.has_parent_path() ? target_.parent_path() : fs::path(".");
  make_directories(parent);
  std::error_code unknown;
  const fs::space_info space = fs::space(parent, unknown);
  if (!unknown && std::cmp_less(space.available, bytes)) {
    throw Error(ErrorKind::generic,
                fmt::format("{} needs {}, but only {} is free on its disk", target_.string(),
                            human_bytes(bytes), human_bytes(static_cast<int64_t>(space.available))),
                "free some of it, or give an output on another disk");
  }
}

void ModelOutput::begin(int64_t bytes) {
  require_space(bytes);
  if (format_ == ModelFormat::hf) directory_.emplace(target_);
}

int64_t ModelOutput::written_bytes() const {
  if (!directory_) return static_cast<int64_t>(fs::file_size(path()));
  int64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path())) {
    if (entry.is_regular_file()) bytes += static_cast<int64_t>(entry.file_size());
  }
  return bytes;
}

void ModelOutput::commit() {
  if (directory_) {
    directory_->commit();
  } else {
    std::error_code error;
    fs::rename(path(), target_, error);
    if (error) {
      fail(ErrorKind::generic, "cannot rename {} to {}: {}", path().string(), target_.string(),
           error.message());
    }
    sync_directory(target_.has_parent_path() ? target_.parent_path() : fs::path("."));
  }
  committed_ = true;
}

}  // namespace jackscrew
