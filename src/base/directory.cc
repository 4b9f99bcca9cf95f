#include "base/directory.h"

namespace jackscrew {

namespace {

[[noreturn]] void fail_to_list(const fs::path& path, const std::error_code& error) {
  throw Error(ErrorKind::generic, fmt::format("cannot list {}: {}", path.string(), error.message()),
              kSeeThatItCanBeRead);
}

}  // namespace

bool is_there(const fs::path& path, ErrorKind kind) {
  std::error_code error;
  const bool there = fs::exists(path, error);
  if (error) {
    throw Unreadable(kind, fmt::format("cannot look at {}: {}", path.string(), error.message()),
                     kSeeThatItCanBeRead);
  }
  return there;
}

std::vector<fs::directory_entry> entries_of(const fs::path& directory, std::error_code& error) {
  std::vector<fs::directory_entry> entries;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(*at);
  }
  return entries;
}

std::vector<fs::directory_entry> entries_of(const fs::path& directory) {
  std::error_code error;
  std::vector<fs::directory_entry> entries = entries_of(directory, error);
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_to_list(directory, error);
  }
  return entries;
}

std::vector<fs::directory_entry> entries_if_directory(const fs::path& path) {
  std::error_code error;
  std::vector<fs::directory_entry> entries = entries_of(path, error);
  const bool is_none =
      error == std::errc::no_such_file_or_directory || error == std::errc::not_a_directory;
  if (error && !is_none) fail_to_list(path, error);
  return entries;
}

int64_t bytes_of_files(const fs::path& directory) {
  int64_t bytes = 0;
  for (const fs::directory_entry& entry : entries_of(directory)) {
    std::error_code gone;  // meanwhile
    const fs::file_type type = entry.symlink_status(gone).type();
    if (type == fs::file_type::directory) bytes += bytes_of_files(entry.path());
    if (type != fs::file_type::regular) continue;
    const uintmax_t size = entry.file_size(gone);
    if (!gone) bytes += static_cast<int64_t>(size);
  }
  return bytes;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ErrorKind::generic, "cannot remove {}: {}", path.string(), error.message());
}

}  // namespace jackscrew
