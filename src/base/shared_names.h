// Names in a run's files that rooms share which otherwise know nothing of one another.
#pragma once

namespace jackscrew {

// The recipe in a checkpoint, and in the output_dir of a run.
inline constexpr const char* kRecipeName = "recipe.yaml";

}  // namespace jackscrew
