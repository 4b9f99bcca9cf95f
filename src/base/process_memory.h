// What the operating system says about memory.
#pragma once

#include <cstdint>

namespace jackscrew {

// Anonymous resident bytes of this process (RssAnon of /proc/self/status); 0 when unknown.
int64_t anonymous_resident_bytes();
// Memory of the machine (MemTotal of /proc/meminfo); 0 when unknown.
int64_t total_memory_bytes();
// Bytes that programs can still take without swapping (MemAvailable of /proc/meminfo, or less where
// a container has a limit); 0 when unknown.
int64_t available_memory_bytes();

}  // namespace jackscrew
