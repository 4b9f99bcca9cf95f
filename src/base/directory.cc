#include "base/directory.h"

#include "base/error.h"

namespace jackscrew {

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
    fail(ErrorKind::generic, "cannot list {}: {}", directory.string(), error.message());
  }
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
