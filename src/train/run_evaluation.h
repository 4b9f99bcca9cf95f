// An evaluation within a run, which a stop cuts short.
#pragma once

#include <functional>
#include <optional>

#include "session/evaluate.h"
#include "train/crew.h"

namespace jackscrew {

// The loss over `evaluation`, of all ranks together; nullopt where `stops()` became true meanwhile.
// It is asked between batches: within one, other ranks would wait for the rest of it.
std::optional<EvalResult> evaluate_run(Crew& crew, const Dataset& evaluation, ProgressStyle style,
                                       const std::function<bool()>& stops);

}  // namespace jackscrew
