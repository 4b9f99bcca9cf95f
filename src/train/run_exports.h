// Models that a run leaves beside its result, for other programs: what `export` asks for. They are
// written from the finished result, as merge and export write them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/file.h"
#include "formats/safetensors.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/model_files.h"

namespace jackscrew {

// Of all functions: `files` are the model that the recipe trains.

// Throws Error(usage) or Error(model) where one of them cannot be, whatever is learned: a format or
// a GGUF file that has no place for it, an adapter that is no part of a weight.
void check_exports(const Recipe& recipe, const ModelFiles& files);

// The bytes of all their files. `weights` are those of the result where that is a model
// (ResultSource::weights()). Throws as check_exports() does. Where the model has no tokenizer that
// can be used, as with that of bytes.
int64_t export_bytes(const Recipe& recipe, const ModelFiles& files,
                     const std::vector<SafetensorsSpec>& weights);

// Whether output_dir, which has the result, lacks one of them.
bool lacks_exports(const Recipe& recipe, const fs::path& output_dir);

// Writes those that output_dir lacks, one after the other; each appears whole or not at all.
// `say` is told of every one. Throws Error of what went wrong, with how to do it again.
void write_exports(const Recipe& recipe, const ModelFiles& files, const fs::path& output_dir,
                   const ProgressStyle& style, const std::function<void(const std::string&)>& say);

}  // namespace jackscrew
