// A rank of a run that obeys rank 0's commands (train/crew.h).
#pragma once

#include <functional>
#include <string>

#include "parallel/transport.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Serves until the run ends; returns the exit code that rank 0 sends. Throws the errors of its own
// work: the caller must then end all ranks.
int serve(Transport& transport);

}  // namespace jackscrew
