// What a run that goes on from a checkpoint has to say first.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"
#include "formats/checkpoint.h"

namespace jackscrew {

// For OptionChange::text().
inline constexpr const char* kCheckpointTime = "when the checkpoint was written";

struct OptionChange {
  std::string name;
  std::string before, now;  // its values, as text

  // "lora_rank was 8 then and is 4 now", with `when` in place of "then".
  std::string text(const std::string& when) const;
};

// Every option that affects the result and is not what it was. `directory`: a checkpoint or an
// output_dir, whose recipe.yaml is compared.
std::vector<OptionChange> changed_options(const fs::path& directory, const OptionSet& options);

// A line for each way in which the run that wrote the checkpoint had another result than this one
// would have: its program and machine, its data, and every option that affects the result. Throws
// Error(model) or Error(usage) when the checkpoint does not say, and Error(data) where files of
// data have changed under their names and nobody named this checkpoint to go on from.
std::vector<std::string> resume_warnings(const fs::path& checkpoint, const CheckpointInfo& now,
                                         const OptionSet& options);

}  // namespace jackscrew
