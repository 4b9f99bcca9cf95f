// What a directory holds, and how it is removed. What the system refuses is an Error(generic) that
// names the path, as of a FileWriter.
#pragma once

#include <vector>

#include "base/file.h"

namespace jackscrew {

// The entries of a directory; none where there is no directory.
std::vector<fs::directory_entry> entries_of(const fs::path& directory);

// Removes a file, or a directory with all in it, where there is one.
void remove_tree(const fs::path& path);

}  // namespace jackscrew
