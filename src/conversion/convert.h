// Converts a model, with or without adapters merged into it, into files that other programs open.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/json_object.h"
#include "conversion/merged_source.h"
#include "conversion/model_output.h"
#include "conversion/result_texts.h"
#include "formats/gguf_model_writer.h"
#include "report/progress.h"

namespace jackscrew {

// The base model of a conversion and, where there are adapters, the merged model.
struct ConvertedModel {
  // Opens the recipe's model and adapters. Throws Error(usage) for a shape without weights,
  // Error(model) for files that are damaged or do not belong together, Error(does_not_fit) where
  // merging them does not.
  explicit ConvertedModel(const Recipe& recipe);
  // Takes a model that is already open, and opens the recipe's adapters; `check` as MergedSource
  // has it. Throws likewise.
  ConvertedModel(const Recipe& recipe, ModelFiles model, const RoomCheck& check = {});
  ConvertedModel(const ConvertedModel&) = delete;  // the merged model reads `base`

  // The model to be written.
  const ModelFiles& result() const { return merged ? *merged : base; }
  // The name of that model in errors.
  std::string name() const;

  ModelFiles base;
  std::vector<WeightedAdapter> adapters;
  std::optional<ModelFiles> merged;
  int64_t merging_bytes = 0;       // MergedSource::most_bytes()
  int64_t held_bytes = 0;          // what of them is taken already: MergedSource::held_bytes()
  std::vector<std::string> notes;  // on what of the adapters is not written, a line each
};

// The text files of a Hugging Face directory, beside the weights. A tokenizer that cannot be used
// here is copied as it is, with a line in `notes`. `dtype` is one of torch_dtype()'s.
Texts directory_texts(const Recipe& recipe, const ModelFiles& files, const char* dtype,
                      std::vector<std::string>& notes);

struct ConversionReport {
  struct Share {
    int64_t tensors = 0, bytes = 0;
  };
  std::map<std::string, Share> formats;  // by storage format
  int64_t bytes = 0;                     // of all files
  std::string file_type;                 // name of a GGUF file's type, if a mixture or kept
  std::vector<std::string> notes;        // deviations from the request, a line each

  JsonObject to_json() const;
};

// The files of a converted model, except for the values of its weights.
class Conversion {
 public:
  // Throws Error(usage) and Error(model) naming what the files cannot hold.
  Conversion(const Recipe& recipe, const ModelFiles& files, const StorageChoice& choice);

  const ConversionReport& report() const { return report_; }
  // Of all files; the largest is of those of weights.
  FileSizes sizes() const { return {report_.bytes, largest_file_}; }
  const std::vector<ModelTensor>& tensors() const { return tensors_; }
  // Writes everything else, as it was planned; the weights are the writer's.
  std::unique_ptr<ModelWriter> begin(const Recipe& recipe, const fs::path& path) const {
    return begin(recipe, path, tensors_);
  }
  // The same with formats that a StorageChoice for GGUF has fixed since.
  std::unique_ptr<ModelWriter> begin(const Recipe& recipe, const fs::path& path,
                                     const std::vector<ModelTensor>& tensors) const;

 private:
  void plan_directory(const Recipe& recipe, const ModelFiles& files, const WeightSource& kept);
  void plan_gguf(const Recipe& recipe, const ModelFiles& files, const StorageChoice& choice);

  ConversionReport report_;
  int64_t largest_file_ = 0;
  std::vector<ModelTensor> tensors_;
  Texts texts_;  // of a Hugging Face directory
  Nf4Dtypes nf4_dtypes_;
  std::optional<GgufModel> gguf_;  // of a GGUF file
};

// Plans what write_converted() will write of such files, exact to the byte; the largest is of those
// of weights. Throws Error(usage) and Error(model) naming what the files cannot hold.
FileSizes plan_conversion(const Recipe& recipe, const ModelFiles& files,
                          const StorageChoice& choice);

// Writes the model to output.path(); the caller commits. Throws Error(model) naming what the files
// cannot hold: before anything is written, unless a single value is the reason.
ConversionReport write_converted(const Recipe& recipe, const ConvertedModel& model,
                                 ModelOutput& output, const ProgressStyle& style);

// Writes the recipe's adapter, which must be LoRA, as a GGUF file for its model, of which only the
// configuration is read. Throws Error(usage) for several adapters, for adapter weights and for a
// storage other than f32 and f16, Error(model) where GGUF has no place for the adapter or it was
// made for another model, Error(non_finite) for values that are not finite.
ConversionReport write_adapter(const Recipe& recipe, ModelOutput& output);

}  // namespace jackscrew
