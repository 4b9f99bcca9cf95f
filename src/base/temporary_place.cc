#include "base/temporary_place.h"

namespace jackscrew {

fs::path large_temporary_directory() {
  std::error_code error;  // TMPDIR is no directory
  const fs::path named = fs::temp_directory_path(error);
  if (!error && named != "/tmp") return named;
  std::error_code ignored;
  return fs::is_directory("/var/tmp", ignored) ? "/var/tmp" : "/tmp";
}

}  // namespace jackscrew
