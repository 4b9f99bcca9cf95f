// How long work tells of itself without knowing who listens.
#pragma once

#include <cstdint>
#include <functional>

namespace jackscrew {

// Called as work gets done, on the thread that does it: `amount` more, in the unit that the work is
// said to count in. Empty: nobody listens.
using ProgressCallback = std::function<void(int64_t amount)>;

}  // namespace jackscrew
