#include "base/process_memory.h"

#include <fmt/format.h>
#include <linux/magic.h>
#include <sys/resource.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/text.h"

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

std::optional<int64_t> read_number(const fs::path& path) {
  std::ifstream file(path);
  int64_t value = 0;
  if (file >> value) return value;
  return std::nullopt;  // also where the file says "max"
}

// The names of the memory files in a version of control groups.
struct GroupFiles {
  const char* limit;
  const char* used;
  std::array<std::string_view, 2> caches;  // in memory.stat: the page cache, which gives way
};
constexpr GroupFiles kVersion1 = {
    "memory.limit_in_bytes", "memory.usage_in_bytes", {"total_inactive_file", "total_active_file"}};
constexpr GroupFiles kVersion2 = {"memory.max", "memory.current", {"inactive_file", "active_file"}};

// A mounted tree of control groups that limit memory.
struct Tree {
  const GroupFiles* files = nullptr;
  std::string top;  // the group that is seen at `mount`: not "/" in many containers
  fs::path mount;
};

bool has_word(const std::string& list, std::string_view word) {
  const std::vector<std::string> words = split(list, ',');
  return std::find(words.begin(), words.end(), word) != words.end();
}

// From lines "36 25 0:31 TOP MOUNT options ... - TYPE source OPTIONS".
std::vector<Tree> mounted_trees(const fs::path& root) {
  std::vector<Tree> trees;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    const size_t dash = line.find(" - ");
    if (dash == std::string::npos) continue;
    const std::vector<std::string> before = split(line.substr(0, dash), ' ');
    const std::vector<std::string> after = split(line.substr(dash + 3), ' ');
    if (before.size() < 5 || after.size() < 3) continue;
    Tree tree{nullptr, before[3], root / fs::path(before[4]).relative_path()};
    if (after[0] == "cgroup2") tree.files = &kVersion2;
    if (after[0] == "cgroup" && has_word(after[2], "memory")) tree.files = &kVersion1;
    if (tree.files != nullptr) trees.push_back(std::move(tree));
  }
  return trees;
}

// The process's group, from the line "0::GROUP" of version 2 or "7:memory:GROUP" of version 1.
std::string own_group(const fs::path& root, const GroupFiles* files) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const size_t first = std::min(line.find(':'), line.size());
    const size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool own =
        files == &kVersion2 ? line.starts_with("0::") : has_word(controllers, "memory");
    if (own) return line.substr(second + 1);
  }
  return "/";
}

// The path of the group below the mount. Empty, for the mount itself, if the group lies outside, as
// for a process that sees its container's own group there and the host's name of it in /proc.
fs::path group_below(const Tree& tree, const std::string& group) {
  const fs::path relative = fs::path(group).lexically_relative(tree.top);
  const bool outside = relative.empty() || *relative.begin() == "..";
  return outside || relative == "." ? fs::path() : relative;
}

// The limit of a group, if it has one, and what it leaves.
std::optional<MemoryLimit> limit_of(const fs::path& directory, const GroupFiles& files) {
  const auto limit = read_number(directory / files.limit);
  const auto usage = read_number(directory / files.used);
  if (!limit || !usage) return std::nullopt;
  int64_t cached = 0;
  std::ifstream stat(directory / "memory.stat");
  std::string name;
  for (int64_t value = 0; stat >> name >> value;) {
    if (std::find(files.caches.begin(), files.caches.end(), name) != files.caches.end()) {
      cached += value;
    }
  }
  const int64_t kept = std::max<int64_t>(0, *usage - cached);
  return MemoryLimit{*limit, std::max<int64_t>(1, *limit - kept), directory};
}

// The limit that leaves less than `bytes`.
std::optional<MemoryLimit> exceeded_limit(int64_t bytes, const fs::path& root) {
  // Reading the limit takes longer than taking so little.
  constexpr int64_t kLittle = int64_t{1} << 20;
  if (bytes <= kLittle) return std::nullopt;
  const auto limit = memory_limit(root);
  return limit && bytes > limit->available ? limit : std::nullopt;
}

}  // namespace

int64_t anonymous_resident_bytes() {
  return read_kib_line("/proc/self/status", "RssAnon:");
}

int64_t total_memory_bytes() {
  return read_kib_line("/proc/meminfo", "MemTotal:");
}

std::optional<MemoryLimit> memory_limit(const fs::path& root) {
  std::optional<MemoryLimit> tightest;
  const auto consider = [&](const std::optional<MemoryLimit>& found) {
    // Version 1 says "none" by a number of some 8 EiB.
    constexpr int64_t kNone = int64_t{1} << 60;
    if (!found || found->bytes >= kNone) return;
    if (!tightest || found->available < tightest->available) tightest = found;
  };
  for (const Tree& tree : mounted_trees(root)) {
    fs::path group = group_below(tree, own_group(root, tree.files));
    for (; !group.empty(); group = group.parent_path()) {
      consider(limit_of(tree.mount / group, *tree.files));
    }
    consider(limit_of(tree.mount, *tree.files));
  }
  return tightest;
}

std::string left_text(const MemoryLimit& limit, int64_t needed) {
  return fmt::format("only {} is left of the memory limit of {} ({})",
                     human_bytes(limit.available, needed), human_bytes(limit.bytes),
                     limit.group.string());
}

bool fits_in_memory(int64_t bytes, const fs::path& root) {
  return !exceeded_limit(bytes, root);
}

void require_memory(int64_t bytes, const std::string& what, const std::string& hint,
                    const fs::path& root) {
  const auto limit = exceeded_limit(bytes, root);
  if (!limit) return;
  throw Error(
      ErrorKind::does_not_fit,
      fmt::format("{} needs {}, but {}", what, human_bytes(bytes), left_text(*limit, bytes)), hint);
}

std::optional<AddressLimit> address_limit() {
  std::optional<AddressLimit> tightest;
  const auto consider = [&](auto resource, const char* command) {
    rlimit limit{};
    if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur > rlim_t{INT64_MAX}) return;
    const auto bytes = static_cast<int64_t>(limit.rlim_cur);
    if (!tightest || bytes < tightest->bytes) tightest = AddressLimit{command, bytes};
  };
  consider(RLIMIT_AS, "ulimit -v");
  consider(RLIMIT_DATA, "ulimit -d");
  return tightest;
}

int64_t available_memory_bytes() {
  const int64_t machine = read_kib_line("/proc/meminfo", "MemAvailable:");
  const auto limit = memory_limit();
  return limit ? std::min(machine, limit->available) : machine;
}

bool files_take_memory(const fs::path& path) {
  std::error_code error;
  fs::path at = fs::absolute(path, error);
  if (error) return false;
  struct statfs found {};
  while (::statfs(at.c_str(), &found) != 0) {
    const fs::path above = at.parent_path();
    if (above == at) return false;
    at = above;
  }
  return found.f_type == TMPFS_MAGIC || found.f_type == RAMFS_MAGIC;
}

}  // namespace jackscrew
