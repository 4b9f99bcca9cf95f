// What a run that goes on from a checkpoint has to say first.
#pragma once

#include <string>
#include <vector>

#include "base/options.h"
#include "formats/checkpoint.h"

namespace jackscrew {

// A line for each way in which the run that wrote the checkpoint had another result than this one
// would have: its program and machine, and every option that affects the result. Throws
// Error(model) or Error(usage) when the checkpoint does not say.
std::vector<std::string> resume_warnings(const fs::path& checkpoint, const CheckpointInfo& now,
                                         const OptionSet& options);

}  // namespace jackscrew
