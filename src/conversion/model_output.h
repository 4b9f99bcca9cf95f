// The place where a command writes a model: the whole model appears there, or nothing.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "conversion/write_model.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Ends the name of what quantize keeps beside its output to go on from.
inline constexpr const char* kUnfinishedSuffix = ".unfinished";

// Throws Error(generic) where another process is making something that is to appear at `output`: a
// run trains there, or a model is written or rounded beside it.
void require_no_writer(const fs::path& output);

// Whether `name` is that of a file of a run's result, a model or an adapter.
bool is_result_file(const std::string& name);

// Whether files in the directory of a model or an adapter are links to files of `directory`, as
// those of a download cache are.
bool reads_from(const fs::path& source, const fs::path& directory);

// Whether an output of that name and format (as recipes have it) is a GGUF file.
bool is_gguf_output(const std::string& format, const fs::path& target);

// What the recipe's output or output_dir names, that of the command line before that of a recipe;
// empty where neither does. Throws Error(usage) where both are named at one place.
std::string output_of(const OptionSet& options);

// Removes a model's file, or of a directory what is a part of a model, and the directory if that
// was all. Throws Error(generic) where the system refuses.
void remove_model(const fs::path& path);

// Removes what stood at `output` before and now is at `replaced`. What somebody has put into it at
// the last moment goes where it was put; where that cannot be, a warning names what is left.
void remove_replaced(const fs::path& replaced, const fs::path& output);

// What a command reads, of which nothing may be replaced: models, adapters, a tokenizer with the
// directory that it is in, and data.
std::vector<std::string> sources_of(const Recipe& recipe);

// Error(usage) where something is at an output's place that is not replaced: the same command
// succeeds once that has been moved away.
class PlaceTaken : public Error {
 public:
  PlaceTaken(const std::string& what, const std::string& hint)
      : Error(ErrorKind::usage, what, hint) {}
};

// The recipe's output_dir or output: a Hugging Face directory or, with format=gguf or a name that
// ends in .gguf, a GGUF file. Nothing appears under the final name before commit(); if this is
// destroyed without it, what was written is removed, and nothing else ever is.
class ModelOutput {
 public:
  // Throws Error(usage) where neither is given or it is "-", or what output_of() throws; where
  // something is read from there, or from the name that the output has until commit(); where it is
  // the current directory; where its name is too long for that; and where something exists already,
  // unless overwrite is set and it is nothing but a model. Throws what require_no_writer() throws.
  // `command` is named in errors. begin() and commit() look once more, and
  // throw PlaceTaken for what stands there.
  ModelOutput(const Recipe& recipe, const std::string& command);

  ModelFormat format() const { return format_; }
  const fs::path& target() const { return target_; }
  // The directory or the file to write to, from begin() to commit(); it has a temporary name.
  const fs::path& path() const { return directory_ ? directory_->path() : file_->path(); }
  // Throws Error(generic) where the disk has less free, or no file may be as large as the largest;
  // Error(does_not_fit) where they would lie in memory (tmpfs), which has less free for them and
  // for what the work takes `beside` them.
  void require_space(const FileSizes& files, int64_t beside) const;
  // Prepares the place for a model in such files. Throws what require_space() throws, and
  // Error(generic) where that fails or another process is writing there.
  void begin(const FileSizes& files, int64_t beside = 0);
  // Throws Error(generic) where what is at path() is another's: somebody has moved or removed what
  // was written there. For whoever is to read it; the next two look, too.
  void require_in_place() const;
  // The total size of the files at path().
  int64_t written_bytes() const;
  void commit();

 private:
  void check() const;

  fs::path target_;
  ModelFormat format_;
  std::vector<std::string> sources_;  // which may not be replaced
  Recipe recipe_;
  // From begin() on, one of them.
  std::optional<AtomicDirectory> directory_;
  std::optional<AtomicFile> file_;
};

}  // namespace jackscrew
