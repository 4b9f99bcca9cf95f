// A rank of a run that obeys rank 0's commands (train/crew.h).
#pragma once

#include "parallel/transport.h"

namespace jackscrew {

// Serves until the run ends. Throws the errors of its own work as RanksLost (train/trainer.h).
void serve(Transport& transport);

}  // namespace jackscrew
