#include "cli/waiting.h"

#include <sched.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>

namespace jackscrew {

namespace {

// Other programs that are running or ready to run; 0 where that is not known.
int64_t running_others() {
  std::ifstream stat("/proc/stat");
  for (std::string name; stat >> name;) {
    int64_t running = 0;
    if (name == "procs_running" && stat >> running) return std::max<int64_t>(0, running - 1);
    std::getline(stat, name);
  }
  return 0;
}

int64_t usable_cores() {
  cpu_set_t set;
  return ::sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

}  // namespace

// By default, idle threads of libgomp spin for milliseconds. If other programs want the cores, that
// takes them from the very thread that everyone waits for: generation from Q4_1 on two cores beside
// two other programs is five times as fast without spinning. On an idle machine it is twice as fast
// with it; 300 turns, some 5 us, are enough to bridge the gaps between parallel regions, and lose
// least when other programs start later (bench/waiting.py; docs/performance.md has the figures).
int64_t spin_count(int64_t others, int64_t cores) {
  constexpr int64_t kBridge = 300;
  // One core in eight may be busy without being missed.
  return 8 * others > cores ? 0 : kBridge;
}

void wait_politely(char** argv) {
  // If it were started through /proc/self/exe alone, top, pgrep and pkill would call the process
  // "exe".
  ::prctl(PR_SET_NAME, ::program_invocation_short_name);
  // Where the loader was asked to start the program, /proc/self/exe is the loader, which would take
  // the first argument for a program.
  if (::getauxval(AT_BASE) == 0) return;
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  const std::string turns = std::to_string(spin_count(running_others(), usable_cores()));
  if (::setenv("GOMP_SPINCOUNT", turns.c_str(), 1) != 0) return;
  ::execv("/proc/self/exe", argv);  // returns only on failure; then the default has to do
}

}  // namespace jackscrew
