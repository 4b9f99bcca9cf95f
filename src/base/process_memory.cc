#include "base/process_memory.h"

#include <fstream>
#include <sstream>
#include <string>

namespace jackscrew {

namespace {

// The value of a line "Name:   123 kB".
int64_t read_kib_line(const char* path, const std::string& name) {
  std::ifstream file(path);
  std::string line;
  while (std::getline(file, line)) {
    if (!line.starts_with(name)) continue;
    std::istringstream rest(line.substr(name.size()));
    int64_t kib = 0;
    rest >> kib;
    return kib * 1024;
  }
  return 0;
}

}  // namespace

int64_t anonymous_resident_bytes() { return read_kib_line("/proc/self/status", "RssAnon:"); }

int64_t total_memory_bytes() { return read_kib_line("/proc/meminfo", "MemTotal:"); }

int64_t available_memory_bytes() { return read_kib_line("/proc/meminfo", "MemAvailable:"); }

}  // namespace jackscrew
