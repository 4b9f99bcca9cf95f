#include "base/process_memory.h"

#include <algorithm>
#include <fstream>
#include <optional>
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

std::optional<int64_t> read_number(const char* path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // also where the file says "max"
}

// What a container's limit leaves, its file pages counted as free: they give way.
std::optional<int64_t> container_available() {
  const auto limit = read_number("/sys/fs/cgroup/memory.max");
  const auto used = read_number("/sys/fs/cgroup/memory.current");
  if (!limit || !used) return std::nullopt;
  int64_t files = 0;
  std::ifstream stat("/sys/fs/cgroup/memory.stat");
  std::string name;
  for (int64_t value = 0; stat >> name >> value;) {
    if (name == "inactive_file" || name == "active_file") files += value;
  }
  return std::max<int64_t>(1, *limit - std::max<int64_t>(0, *used - files));
}

}  // namespace

int64_t anonymous_resident_bytes() {
  return read_kib_line("/proc/self/status", "RssAnon:");
}

int64_t total_memory_bytes() {
  return read_kib_line("/proc/meminfo", "MemTotal:");
}

int64_t available_memory_bytes() {
  const int64_t machine = read_kib_line("/proc/meminfo", "MemAvailable:");
  return std::min(machine, container_available().value_or(machine));
}

}  // namespace jackscrew
