#include "base/output_name.h"

#include <unistd.h>

#include <cstring>
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

void require_temporary_name(const fs::path& final_path) {
  const fs::path named = named_path(final_path);
  std::error_code unknown;
  fs::path parent = fs::absolute(named, unknown).parent_path();
  // Those that are missing will be made on the disk of the first that is there.
  while (!fs::exists(parent, unknown) && parent.has_relative_path()) parent = parent.parent_path();
  const long longest = ::pathconf(parent.c_str(), _PC_NAME_MAX);
  const auto bytes = static_cast<long>(named.filename().native().size());
  const size_t suffixes = std::strlen(kTemporarySuffix) + std::strlen(kReplacedSuffix);
  const long most = longest - static_cast<long>(suffixes);
  if (longest < 0 || bytes <= most) return;
  throw Error(
      ErrorKind::usage,
      fmt::format("the name of {} has {} bytes, and may have {}: it is followed by {}{} until "
                  "the output is whole",
                  final_path.string(), bytes, most, kTemporarySuffix, kReplacedSuffix),
      "give a shorter name");
}

}  // namespace jackscrew
