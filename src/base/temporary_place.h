// Where temporary files go.
#pragma once

#include "base/file.h"

namespace jackscrew {

// The directory for files too large for memory, which /tmp may be in: /var/tmp then. A directory
// that the user names (TMPDIR) is taken instead.
fs::path large_temporary_directory();

}  // namespace jackscrew
