// The directory that a run writes into, and the protection of what is already there.
#pragma once

#include <span>
#include <string>

#include "base/directory_handle.h"
#include "base/file.h"
#include "conversion/model_output.h"
#include "data/data_files.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Throws Error(usage) where the recipe's output_dir is not a directory or a link to nowhere, is
// where the model, the adapter, lora_original_model or data are read from, has a link in place
// of the directory of tokens, or holds files with names that a run writes although they are not a
// run's. Changes nothing.
void check_output_dir(const Recipe& recipe);

// Holds a run's directory, from before anything is written to it.
class OutputClaim {
 public:
  // Creates the directory where it is missing, locks it against other runs, removes what a killed
  // run left half-written, and completes the move of a result that one left half-moved. Throws
  // Error(generic) where the system refuses or another run holds the lock.
  explicit OutputClaim(const fs::path& output_dir);
  // Removes the directory if this created it, unless keep() was called.
  ~OutputClaim();
  OutputClaim(const OutputClaim&) = delete;
  OutputClaim& operator=(const OutputClaim&) = delete;

  void keep() { is_new_ = false; }

  // The present path of the claimed directory. If it was moved, returns the new path and warns the
  // first time: another run may have taken the old name. If it was removed and nothing has its
  // name, creates it again. Throws Error(generic) where it cannot be reached, or cannot be found
  // and another directory has its name: nothing may be written there.
  const fs::path& path();
  // As path(), but creates nothing: nullptr where the directory cannot be found.
  const fs::path* find();
  // The present path of something in the directory, given its path from before the directory was
  // moved.
  fs::path present(const fs::path& path);

 private:
  void claim();

  fs::path path_;
  bool is_new_;
  DirectoryHandle directory_;
  DirectoryLock lock_;
};

// Whether the weights of a result are at the top of the directory. Throws Error(generic) where it
// cannot be listed.
bool has_result(const fs::path& output_dir);

// How a command is given that result: model=DIR, or adapter=DIR where it is an adapter.
std::string result_setting(const fs::path& output_dir);

// Where the tokens of large data are kept for resumed runs.
fs::path tokens_directory(const fs::path& output_dir);
// The name there of those of a recipe's data set of that number, from 1 on.
std::string token_file_name(DataPart part, size_t number);

// Removes what would look like a part of a run that starts over: checkpoints, and all tokens but
// those in `token_files`, the names that this run has written or read.
void remove_earlier_run(const fs::path& output_dir, std::span<const std::string> token_files);

// Where the models of the recipe's `export` are, always those of the present result.
fs::path exports_directory(const fs::path& output_dir);

// Where the result is written: what has this name is all of it.
fs::path whole_result(const fs::path& output_dir);
// The name that it has while its files move to the top of the directory (train/result_move.h).
fs::path moving_result(const fs::path& output_dir);

}  // namespace jackscrew
