// The directory that a run writes into, and what must not come to harm there.
#pragma once

#include <optional>

#include "base/directory_handle.h"
#include "base/file.h"
#include "conversion/model_output.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Throws Error(usage) when the recipe's output_dir is not a directory, is where the model or
// adapter is read from, or holds files of the names that a run writes but no run's. Changes
// nothing.
void check_output_dir(const Recipe& recipe);

// A run's directory, from before anything is written to it.
class OutputClaim {
 public:
  // Creates the directory where it is missing, holds it against other runs, and removes what a
  // killed run left half-written. Throws Error(generic) when the system refuses or another run is
  // at work.
  explicit OutputClaim(const fs::path& output_dir);
  // A directory that it created goes again, unless keep() was called.
  ~OutputClaim();
  OutputClaim(const OutputClaim&) = delete;
  OutputClaim& operator=(const OutputClaim&) = delete;

  void keep() { is_new_ = false; }

  // The path that leads to the claimed directory now. Where that was moved, it is the new one, of
  // which a warning tells the first time: another run may have taken the old name. Where it was
  // removed and nothing has its name, it is made again. Throws Error(generic) where it cannot be
  // found and another one has its name: nothing may be written there.
  const fs::path& path();
  // The same, but makes nothing: nullptr where it cannot be found.
  const fs::path* find();

 private:
  void claim();

  fs::path path_;
  bool is_new_;
  DirectoryHandle directory_;
  DirectoryLock lock_;
};

// The log in output_dir; every run writes it first.
inline constexpr const char* kLogName = "train_log.jsonl";

// Whether the weights of a result are at the top of the directory.
bool has_result(const fs::path& output_dir);

// Where the tokens of large data are kept, for runs that go on.
fs::path tokens_directory(const fs::path& output_dir);

// Where models are that the recipe wants beside the result; of this very result, always.
fs::path exports_directory(const fs::path& output_dir);

// Where the result is put together before its files move to the top of the directory.
fs::path result_staging(const fs::path& output_dir);

}  // namespace jackscrew
