// What the system refused to do with a file, as an Error.
#pragma once

#include "base/error.h"
#include "base/file.h"

namespace jackscrew {

// Throws Error(kind): it cannot `action` the file, for the reason in errno. A FullDisk where the
// disk is full, an Unreadable where a file that is read (kind: model) is there.
[[noreturn]] void fail_system(ErrorKind kind, const char* action, const fs::path& path);

}  // namespace jackscrew
