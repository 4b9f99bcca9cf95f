#include "report/growing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "report/progress.h"

namespace jackscrew {

namespace {

constexpr size_t kMostWaiting = size_t{16} << 20;

// The text of a file of so many bytes, as far as it can be read.
std::string whole_text(int descriptor, off_t size) {
  std::string text(static_cast<size_t>(size), '\0');
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t count =
        ::pread(descriptor, text.data() + done, text.size() - done, static_cast<off_t>(done));
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    done += static_cast<size_t>(count);
  }
  text.resize(done);
  return text;
}

}  // namespace

GrowingFile::GrowingFile(const fs::path& path)
    : path_(path),
      descriptor_(::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC, 0644)) {
  struct stat info {};
  if (descriptor_ >= 0 && ::fstat(descriptor_, &info) == 0) {
    began_empty_ = info.st_size == 0;
    return;
  }
  const int reason = errno;
  if (descriptor_ >= 0) ::close(descriptor_);
  fail(ErrorKind::generic, "cannot create {}: {}", path.string(), std::strerror(reason));
}

GrowingFile::~GrowingFile() {
  if (!write_waiting()) {
    warn(fmt::format("cannot write the last lines of {}: {}; they are lost", path_.string(),
                     std::strerror(errno)));
  }
  ::close(descriptor_);
}

void GrowingFile::append(std::string_view piece, PieceKind kind) {
  const size_t most = kind == PieceKind::important ? 2 * kMostWaiting : kMostWaiting;
  const bool is_kept = waiting_.size() + piece.size() <= most || write_waiting();
  if (is_kept) waiting_ += piece;
  if (is_kept && write_waiting()) return;
  const int reason = errno;
  const auto warn_once = [&](bool& warned, const char* effect) {
    if (std::exchange(warned, true)) return;
    warn(fmt::format("cannot write {}: {}; {}", path_.string(), std::strerror(reason), effect));
  };
  if (!is_kept) {
    return warn_once(warned_of_loss_,
                     "16 MiB of lines wait, and from now on further ones are lost until it can be "
                     "written");
  }
  warn_once(warned_, reason == EFBIG
                         ? "the run continues, but its further lines are lost unless the file size "
                           "limit is raised (ulimit -f; prlimit for a process that runs)"
                         : "the run continues, and writes the missing lines when it can");
}

void GrowingFile::flush() {
  if (write_waiting()) return;
  const int reason = errno;
  const std::string what =
      fmt::format("cannot write {}: {}", path_.string(), std::strerror(reason));
  if (reason == ENOSPC || reason == EDQUOT) throw FullDisk(ErrorKind::generic, what);
  throw Error(ErrorKind::generic, what);
}

void GrowingFile::put_back(const fs::path& directory) {
  struct stat own {};
  struct stat other {};
  if (::fstat(descriptor_, &own) != 0) return;
  const fs::path path = directory / path_.filename();
  const bool is_there = ::stat(path.c_str(), &other) == 0;
  if (is_there && own.st_dev == other.st_dev && own.st_ino == other.st_ino) return;
  // A pipe might never take what is written to it.
  const bool may_open = !is_there || S_ISREG(other.st_mode);
  const int flags = O_RDWR | O_APPEND | O_CLOEXEC | (is_there ? 0 : O_CREAT | O_EXCL);
  const int anew = may_open ? ::open(path.c_str(), flags, 0644) : -1;
  if (is_there && !std::exchange(warned_of_other_, true)) {
    const std::string reason = may_open ? std::strerror(errno) : "it is not a file";
    warn(anew >= 0 ? fmt::format("another file has taken the place of {}: the run adds to it what "
                                 "it lacks, and continues there",
                                 path.string())
                   : fmt::format("the run's lines do not go to what has taken the place of {}: {}; "
                                 "remove that, and the run writes the file anew",
                                 path.string(), reason));
  }
  if (anew < 0) return;
  // A file that was removed can be read for as long as it is open, as one that was renamed.
  const int before = std::exchange(descriptor_, anew);
  std::string text = whole_text(before, own.st_size);
  ::close(before);
  // The other one may be a copy.
  const std::string there = whole_text(anew, std::min(own.st_size, other.st_size));
  if (text.starts_with(there)) text.erase(0, there.size());
  waiting_.insert(0, text);
  path_ = path;
  write_waiting();
}

// Writes all of it or nothing, since a truncated piece would spoil the next. Leaves the reason in
// errno.
bool GrowingFile::write_waiting() {
  if (waiting_.empty()) return true;
  struct stat before {};
  if (::fstat(descriptor_, &before) != 0) return false;
  size_t written = 0;
  while (written < waiting_.size()) {
    const ssize_t count =
        ::write(descriptor_, waiting_.data() + written, waiting_.size() - written);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      const int reason = count == 0 ? ENOSPC : errno;
      if (written > 0 && ::ftruncate(descriptor_, before.st_size) != 0) return false;
      errno = reason;
      return false;
    }
    written += static_cast<size_t>(count);
  }
  waiting_.clear();
  return true;
}

}  // namespace jackscrew
