#include "base/directory.h"

#include "base/error.h"

namespace jackscrew {

std::vector<fs::directory_entry> entries_of(const fs::path& directory) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    entries.push_back(*at);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail(ErrorKind::generic, "cannot list {}: {}", directory.string(), error.message());
  }
  return entries;
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail(ErrorKind::generic, "cannot remove {}: {}", path.string(), error.message());
}

}  // namespace jackscrew
