// Warnings and checks for a run that resumes from a checkpoint.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/options.h"
#include "formats/checkpoint.h"

namespace jackscrew {

// The argument `when` of OptionChange::text().
inline constexpr const char* kCheckpointTime = "when the checkpoint was written";

// Whether evaluations decide what becomes the result.
bool evaluations_decide(const OptionSet& options);

struct OptionChange {
  std::string name;
  std::string before, now;      // its values, as text
  bool may_have_moved = false;  // the files of then are gone, and others are there now

  // "lora_rank was 8 then and is 4 now", with `when` in place of "then".
  std::string text(const std::string& when) const;
};

// Every option that affects the result and differs from the earlier run. `directory` is a
// checkpoint or an output_dir, whose recipe.yaml is compared.
std::vector<OptionChange> changed_options(const fs::path& directory, const OptionSet& options);

// Whether a run's recipe.yaml, which is there, has no option at all: every run writes some.
bool is_empty_recipe(const fs::path& recipe);

// What a run's recipe.yaml says of an option; nullopt where it says nothing, or is none.
std::optional<std::string> saved_value(const fs::path& recipe, const char* option);

// Whether an option names what RunInputs::model is the fingerprint of.
bool names_model(const std::string& option);

// A line for each difference between the run that wrote the checkpoint and this one that changes
// the result: program and machine, data, options. Throws Error(model) or Error(usage) where the
// checkpoint does not say, and, unless the recipe names this checkpoint, Error(data) where data
// files have changed under the same names, Error(model) where weights that do not learn have.
std::vector<std::string> resume_warnings(const fs::path& checkpoint, const CheckpointInfo& now,
                                         const OptionSet& options);

// The warning where other data are held out than when a checkpoint or log was written.
std::string other_held_out(const fs::path& written);

// Warns where a log is of a run with other held-out data than those of this fingerprint, so that
// its evaluations and new ones are not compared.
void warn_of_other_held_out(const fs::path& log, const std::string& now);

}  // namespace jackscrew
