#include "base/directory_handle.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "base/error.h"

namespace jackscrew {

DirectoryHandle::DirectoryHandle(const fs::path& path)
    : descriptor_(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC)), opened_as_(path) {
  if (descriptor_ >= 0) return;
  fail(ErrorKind::generic, "cannot open {}: {}", path.string(), std::strerror(errno));
}

DirectoryHandle::~DirectoryHandle() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

DirectoryHandle::DirectoryHandle(DirectoryHandle&& other) noexcept
    : descriptor_(std::exchange(other.descriptor_, -1)), opened_as_(std::move(other.opened_as_)) {}

DirectoryHandle& DirectoryHandle::operator=(DirectoryHandle&& other) noexcept {
  std::swap(descriptor_, other.descriptor_);
  std::swap(opened_as_, other.opened_as_);
  return *this;
}

bool DirectoryHandle::is_at(const fs::path& path) const {
  struct stat ours {};
  struct stat theirs {};
  return ::fstat(descriptor_, &ours) == 0 && ::stat(path.c_str(), &theirs) == 0 &&
         ours.st_dev == theirs.st_dev && ours.st_ino == theirs.st_ino;
}

std::optional<fs::path> DirectoryHandle::path() const {
  if (is_at(opened_as_)) return opened_as_;
  std::error_code error;
  fs::path now = fs::read_symlink("/proc/self/fd/" + std::to_string(descriptor_), error);
  if (error) return std::nullopt;
  // Some file systems give a directory a new inode number whenever it is looked up.
  if (is_at(now) || now == fs::canonical(opened_as_, error)) return now;
  return std::nullopt;
}

}  // namespace jackscrew
