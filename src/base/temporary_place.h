// Where files may be put for a while.
#pragma once

#include "base/file.h"

namespace jackscrew {

// For what is too large for memory, which /tmp may be: /var/tmp then. A directory that the user
// names instead (TMPDIR) is taken.
fs::path large_temporary_directory();

}  // namespace jackscrew
