// A rank of a run that obeys rank 0's commands (train/crew.h).
#pragma once

#include <string>

#include "parallel/transport.h"

namespace jackscrew {

// Serves until the run ends. `given` is the recipe that this rank was started with, as YAML: it is
// not used, and rank 0 warns where its own is another; empty: it has none. Throws the errors of its
// own work as RanksLost (train/trainer.h).
void serve(Transport& transport, const std::string& given = {});

}  // namespace jackscrew
