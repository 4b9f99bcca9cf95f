// Models for other programs beside a run's result: what `export` asks for. They are written from
// the finished result, as merge and export write them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/safetensors.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/model_files.h"
#include "train/train_console.h"

namespace jackscrew {

// Throws Error(usage) where the files of an export cannot have its storage, whatever the model is.
void check_export_storages(const Recipe& recipe);

// In all functions, `files` is the model that the recipe trains.

// Throws Error(usage) or Error(model) where an export is impossible whatever is learned: a format
// or GGUF file that has no place for it, an adapter that cannot be merged into weights.
void check_exports(const Recipe& recipe, const ModelFiles& files);

// What all their files take; the largest is of those of weights. `weights` are the result's where
// it is a model (ResultSource::weights()). Throws as check_exports() does. A model without a usable
// tokenizer is planned with the byte tokenizer.
FileSizes export_sizes(const Recipe& recipe, const ModelFiles& files,
                       const std::vector<SafetensorsSpec>& weights);

// Whether output_dir, which holds the result, lacks one of them.
bool lacks_exports(const Recipe& recipe, const fs::path& output_dir);

// Whether it holds models that a run has exported.
bool has_exports(const fs::path& output_dir);

// Removes the models that an earlier run has exported, and what it left half-written. Warns of the
// models.
void remove_exports(const fs::path& output_dir);

struct WrittenExport {
  std::string format;  // as the recipe names it: "gguf:q4_k_m"
  fs::path path;       // a file or a directory
  int64_t bytes;
  std::vector<std::string> notes;  // for the user
};

// Adds it to the log and the report of the run in output_dir; a failure is no more than a warning.
void log_export(const fs::path& output_dir, const WrittenExport& written);

// The same for those of a finished run that are there and that its log lacks: it could not be
// written, or another command wrote the model.
void log_earlier_exports(const Recipe& recipe, const fs::path& output_dir);

// Writes those that output_dir lacks, one after another; each appears whole or not at all. Calls
// written() after each. Throws the error of the first that fails, with the command that repeats it.
void write_exports(const Recipe& recipe, const ModelFiles& files, const fs::path& output_dir,
                   const ProgressStyle& style,
                   const std::function<void(const WrittenExport&)>& written);
// The same for a run, which tells of each and logs it. Throws Error(interrupted) where a stop is
// requested.
void write_run_exports(const Recipe& recipe, const ModelFiles& files, const fs::path& output_dir,
                       const TrainConsole& console);

}  // namespace jackscrew
