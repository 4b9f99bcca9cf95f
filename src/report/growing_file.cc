#include "report/growing_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

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

void GrowingFile::append(std::string_view piece) {
  if (waiting_.size() + piece.size() <= kMostWaiting) waiting_ += piece;
  if (write_waiting() || warned_) return;
  warned_ = true;
  warn(fmt::format(
      "cannot write {}: {}; the run continues, and writes the missing lines when it can",
      path_.string(), std::strerror(errno)));
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
  struct stat info {};
  if (::fstat(descriptor_, &info) != 0) return;
  const fs::path path = directory / path_.filename();
  const int anew = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (anew < 0) return;  // mostly since it is still there
  // A file that was removed can be read for as long as it is open, as one that was renamed.
  const int before = std::exchange(descriptor_, anew);
  waiting_.insert(0, whole_text(before, info.st_size));
  ::close(before);
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
