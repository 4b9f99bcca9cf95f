// What a run that goes on from a checkpoint has to say first.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"
#include "formats/checkpoint.h"

namespace jackscrew {

struct OptionChange {
  std::string name;
  std::string text;  // "lora_rank was 8 when the checkpoint was written and is 4 now"
};

// Every option that affects the result and is not what it was.
std::vector<OptionChange> changed_options(const fs::path& checkpoint, const OptionSet& options);

// A line for each way in which the run that wrote the checkpoint had another result than this one
// would have: its program and machine, its data, and every option that affects the result. Throws
// Error(model) or Error(usage) when the checkpoint does not say, and Error(data) where files of
// data have changed under their names and nobody named this checkpoint to go on from.
std::vector<std::string> resume_warnings(const fs::path& checkpoint, const CheckpointInfo& now,
                                         const OptionSet& options);

}  // namespace jackscrew
