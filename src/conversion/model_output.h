// The place where a command writes a model: the whole model appears there, or nothing.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "conversion/write_model.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Whether `name` is that of a file of a run's result, a model or an adapter.
bool is_result_file(const std::string& name);

// The recipe's output_dir or output: a Hugging Face directory or, with format=gguf or a name that
// ends in .gguf, a GGUF file. Nothing appears under the final name before commit(); if this is
// destroyed without it, what was written is removed.
class ModelOutput {
 public:
  // Throws Error(usage) where neither or both are given; where the model or an adapter is read from
  // there; and where something exists already, unless overwrite is set and it is nothing but a
  // model. `command` is named in errors.
  ModelOutput(const Recipe& recipe, const std::string& command);
  ~ModelOutput();
  ModelOutput(const ModelOutput&) = delete;
  ModelOutput& operator=(const ModelOutput&) = delete;

  ModelFormat format() const { return format_; }
  const fs::path& target() const { return target_; }
  // The directory or the file to write to; before commit() it has a temporary name.
  fs::path path() const;
  // Throws Error(generic) where the disk has fewer than `bytes` free.
  void require_space(int64_t bytes) const;
  // Prepares the place for a model of `bytes`. Throws Error(generic) where that fails.
  void begin(int64_t bytes);
  // The total size of the files at path().
  int64_t written_bytes() const;
  void commit();

 private:
  void check(const Recipe& recipe) const;

  fs::path target_;
  ModelFormat format_;
  std::optional<AtomicDirectory> directory_;  // of a Hugging Face directory, from begin() on
  bool committed_ = false;
};

}  // namespace jackscrew
