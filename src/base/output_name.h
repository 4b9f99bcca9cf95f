// The names that outputs have while they are written (AtomicFile, AtomicDirectory).
#pragma once

#include "base/file.h"

namespace jackscrew {

// Throws Error(usage) where `source`, which is read, is at the temporary name of `final_path`, or
// below it: whoever writes there removes it first.
void refuse_temporary(const fs::path& source, const fs::path& final_path);

// Throws Error(usage) where the name of `final_path` is so long that its disk has no such temporary
// name: known before the work, not after it.
void require_temporary_name(const fs::path& final_path);

}  // namespace jackscrew
