#include "base/temporary_place.h"

namespace jackscrew {

fs::path large_temporary_directory() {
  const fs::path named = fs::temp_directory_path();
  return named == "/tmp" && fs::is_directory("/var/tmp") ? "/var/tmp" : named;
}

}  // namespace jackscrew
