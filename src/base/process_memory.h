// What the operating system says about memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/file.h"

namespace jackscrew {

// Anonymous resident bytes of this process (RssAnon of /proc/self/status); 0 when unknown.
int64_t anonymous_resident_bytes();
// Memory of the machine (MemTotal of /proc/meminfo); 0 when unknown.
int64_t total_memory_bytes();

// A limit that the kernel enforces on this process by killing it.
struct MemoryLimit {
  int64_t bytes = 0;
  int64_t available = 0;  // what is left of it; the page cache counts as free, as it gives way
  fs::path group;         // the directory of the control group that sets it
};

// The limit that leaves least, among those of the process's control group and of the groups around
// it, in version 1 and 2 of control groups: containers, systemd and Slurm set them. `root`: where
// /proc and the mounts are looked for.
std::optional<MemoryLimit> memory_limit(const fs::path& root = "/");
// "only 20.0 MiB is left of the memory limit of 64.0 MiB (DIRECTORY)", where `needed` is more.
std::string left_text(const MemoryLimit& limit, int64_t needed);

// Whether memory_limit() leaves so many bytes. Up to 1 MiB is not looked at. `root` as above.
bool fits_in_memory(int64_t bytes, const fs::path& root = "/");
// Throws Error(does_not_fit) where the `bytes` that `what` needs are more than that, before the
// kernel kills the process for them.
void require_memory(int64_t bytes, const std::string& what, const std::string& hint,
                    const fs::path& root = "/");

// A limit beyond which the kernel refuses this process memory.
struct AddressLimit {
  const char* command;  // of the shell: "ulimit -v"
  int64_t bytes;
};
// The tighter one of RLIMIT_AS and RLIMIT_DATA; nullopt: neither is set.
std::optional<AddressLimit> address_limit();

// Bytes that programs can still take without swapping (MemAvailable of /proc/meminfo, or less where
// memory_limit() leaves less); 0 when unknown.
int64_t available_memory_bytes();

// Whether a file at `path` takes memory, not room on a disk: it would lie in a tmpfs or ramfs,
// whose files count towards memory limits. Where nothing is at `path` yet, the directory decides in
// which it would be made.
bool files_take_memory(const fs::path& path);

}  // namespace jackscrew
