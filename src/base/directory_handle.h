// A directory that is kept open, and found again when it has been moved.
#pragma once

#include <sys/types.h>

#include <optional>

#include "base/file.h"

namespace jackscrew {

class DirectoryHandle {
 public:
  DirectoryHandle() = default;
  // Throws Error(generic) where it cannot be opened.
  explicit DirectoryHandle(const fs::path& path);
  ~DirectoryHandle();
  DirectoryHandle(DirectoryHandle&& other) noexcept;
  DirectoryHandle& operator=(DirectoryHandle&& other) noexcept;
  DirectoryHandle(const DirectoryHandle&) = delete;
  DirectoryHandle& operator=(const DirectoryHandle&) = delete;

  // For openat() and its like.
  int descriptor() const { return descriptor_; }
  // Whether that path leads to this directory, and not to another that took its name.
  bool is_at(const fs::path& path) const;
  // A path that leads to it now: the one by which it was opened, or where it was moved. nullopt
  // where it was removed, or the system does not say.
  std::optional<fs::path> path() const;
  // The same for messages: if no path leads to it, the one by which it was opened.
  fs::path shown() const { return path().value_or(opened_as_); }

 private:
  int descriptor_ = -1;
  fs::path opened_as_;
};

}  // namespace jackscrew
