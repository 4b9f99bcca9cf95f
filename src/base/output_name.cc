#include "base/output_name.h"

#include <string>

#include "base/error.h"

namespace jackscrew {

void refuse_temporary(const fs::path& source, const fs::path& final_path) {
  const std::string temporary = named_path(final_path).string() + kTemporarySuffix;
  std::error_code missing;
  // A link is removed where it is; what it leads to, where that is.
  for (fs::path at : {fs::absolute(source, missing), fs::canonical(source, missing)}) {
    for (; at.has_relative_path(); at = at.parent_path()) {
      if (!is_same_file(at, temporary) && !is_same_file(at, temporary + kReplacedSuffix)) continue;
      throw Error(ErrorKind::usage,
                  fmt::format("{} is what is read, and would be removed: {} has that name until "
                              "it is whole",
                              source.string(), final_path.string()),
                  "give another output, or rename what is read");
    }
  }
}

}  // namespace jackscrew
