// How long an idle thread spins before it sleeps.
#pragma once

#include <cstdint>

namespace jackscrew {

// Turns that an idle thread of libgomp spins when `others` programs want the machine's `cores`.
int64_t spin_count(int64_t others, int64_t cores);

// Restarts the program with that setting in its environment, unless one is set: libgomp reads it
// before main() begins. Returns where there is nothing to do, or no way to do it.
void wait_politely(char** argv);

}  // namespace jackscrew
