// A rank of a run that does what rank 0 tells it (train/crew.h).
#pragma once

#include <functional>
#include <string>

#include "parallel/transport.h"
#include "recipe/recipe.h"

namespace jackscrew {

// Serves until the run ends; the exit code that rank 0 says. Throws what its part of the work
// throws: who calls it must then end all ranks.
int serve(Transport& transport);

}  // namespace jackscrew
