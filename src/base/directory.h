// What a directory holds, and how it is removed. What the system refuses is an Error(generic) that
// names the path, as of a FileWriter.
#pragma once

#include <cstdint>
#include <system_error>
#include <vector>

#include "base/file.h"

namespace jackscrew {

// The entries of a directory; none where there is no directory.
std::vector<fs::directory_entry> entries_of(const fs::path& directory);
// As many as the system lists; `error` says why not all. A loop over a fs::directory_iterator
// throws no Error where the system refuses to go on.
std::vector<fs::directory_entry> entries_of(const fs::path& directory, std::error_code& error);

// The bytes of all files in a directory and below it; 0 where there is no directory.
int64_t bytes_of_files(const fs::path& directory);

// Removes a file, or a directory with all in it, where there is one.
void remove_tree(const fs::path& path);

}  // namespace jackscrew
