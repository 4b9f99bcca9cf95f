// Names in a run's files that rooms share which otherwise know nothing of one another.
#pragma once

namespace jackscrew {

// The recipe in a checkpoint, and in the output_dir of a run.
inline constexpr const char* kRecipeName = "recipe.yaml";

// The log in an output_dir; the first file that a run writes.
inline constexpr const char* kLogName = "train_log.jsonl";

// The two names, in an output_dir, of a result on its way to the top: from when it is whole; and
// once what it replaces has made way, while its files move.
inline constexpr const char* kWholeResult = ".jackscrew-result.whole";
inline constexpr const char* kMovingResult = ".jackscrew-result";

// A member of Learner::adapter() that is none of adapter_config.json, which PEFT warns of: the
// storage whose rounding an adapter's factors make up for. Over weights that are stored otherwise
// they are wrong.
inline constexpr const char* kBaseStorage = "base_storage";

}  // namespace jackscrew
