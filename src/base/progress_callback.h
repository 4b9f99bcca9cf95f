// How long-running work reports its progress without knowing who listens.
#pragma once

#include <cstdint>
#include <functional>

namespace jackscrew {

// Called on the working thread as work gets done, with the `amount` that was added, in the unit
// that the work declares. Empty: nobody listens.
using ProgressCallback = std::function<void(int64_t amount)>;

}  // namespace jackscrew
