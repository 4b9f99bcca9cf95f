#include "base/system_failure.h"

#include <cerrno>
#include <cstring>
#include <string_view>

namespace jackscrew {

void fail_system(ErrorKind kind, const char* action, const fs::path& path) {
  const int code = errno;
  const std::string what =
      fmt::format("cannot {} {}: {}", action, path.string(), std::strerror(code));
  if (code == ENOSPC || code == EDQUOT) {
    throw FullDisk(kind, what, "free some space on that disk and run again");
  }
  const bool forbidden = code == EACCES || code == EPERM || code == EROFS || code == ENOTDIR;
  const bool is_read = kind == ErrorKind::model;  // of that kind are files that are read
  const char* hint = code == ENOENT   ? "check the path"
                     : code == EFBIG  ? "raise the file size limit (ulimit -f) and run again"
                     : code == EMFILE ? "raise the limit of open files (ulimit -n) and run again"
                     : code == ENFILE ? "close other programs: the system has too many files open"
                     : forbidden && std::string_view(action) == "create"
                         ? "give a place that can be written to"
                     : is_read ? kSeeThatItCanBeRead
                               : "";
  if (is_read && code != ENOENT) throw Unreadable(kind, what, hint);
  throw Error(kind, what, hint);
}

}  // namespace jackscrew
