// What a directory holds, and how it is removed. What the system refuses is an Error(generic) that
// names the path, as of a FileWriter, unless a caller gives another kind.
#pragma once

#include <cstdint>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"

namespace jackscrew {

// Whether something is at a path. Where the system cannot say, it may be there: Unreadable of the
// kind that what is read from there has.
bool is_there(const fs::path& path, ErrorKind kind = ErrorKind::generic);

// The entries of a directory; none where nothing is there.
std::vector<fs::directory_entry> entries_of(const fs::path& directory);
// The same, but none where a file is there, too.
std::vector<fs::directory_entry> entries_if_directory(const fs::path& path);
// As many as the system lists; `error` says why not all. A loop over a fs::directory_iterator
// throws no Error where the system refuses to go on.
std::vector<fs::directory_entry> entries_of(const fs::path& directory, std::error_code& error);

// The bytes of all files in a directory and below it; 0 where there is no directory.
int64_t bytes_of_files(const fs::path& directory);

// Removes a file, or a directory with all in it, where there is one.
void remove_tree(const fs::path& path);

}  // namespace jackscrew
