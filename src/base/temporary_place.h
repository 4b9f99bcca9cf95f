// Where temporary files go.
#pragma once

#include "base/file.h"

namespace jackscrew {

// The directory for files too large for memory, which /tmp may be in: /var/tmp then. A directory
// that the user names (TMPDIR) is taken instead, where there is one of this name.
fs::path large_temporary_directory();

}  // namespace jackscrew
