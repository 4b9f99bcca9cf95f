// Where a command writes a model: whole, or not at all.
#pragma once

#include <optional>
#include <string>

#include "base/file.h"
#include "conversion/write_model.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Whether the result of a run, a model or an adapter, has a file of that name.
bool is_result_file(const std::string& name);

// The recipe's output_dir or output: a Hugging Face directory or, with format=gguf or a name that
// ends so, a GGUF file. Until commit() there is nothing at its name; what is left when this is
// destroyed without it is removed.
class ModelOutput {
 public:
  // Throws Error(usage) when neither is given, or both; when the model or an adapter is read from
  // there; and when there is something already, unless overwrite is set and it is nothing but a
  // model. `command` says who needs it.
  ModelOutput(const Recipe& recipe, const std::string& command);
  ~ModelOutput();
  ModelOutput(const ModelOutput&) = delete;
  ModelOutput& operator=(const ModelOutput&) = delete;

  ModelFormat format() const { return format_; }
  const fs::path& target() const { return target_; }
  // The directory or the file to write to.
  fs::path path() const;
  // Throws Error(generic) where its disk has not so many bytes left.
  void require_space(int64_t bytes) const;
  // Makes the place for it, of so many bytes. Throws Error(generic) where that cannot be.
  void begin(int64_t bytes);
  // The bytes of all that lies at path().
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
