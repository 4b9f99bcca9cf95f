// Bytes at the very end of a page, behind which nothing may be read.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <span>

#include "base/checked.h"
#include "base/error.h"

namespace jackscrew {

class GuardedBytes {
 public:
  explicit GuardedBytes(std::span<const uint8_t> bytes)
      : pages_((bytes.size() + kPage - 1) / kPage * kPage), size_(bytes.size()) {
    base_ = static_cast<uint8_t*>(::mmap(nullptr, pages_ + kPage, PROT_READ | PROT_WRITE,
                                         MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED) fail(ErrorKind::generic, "no memory for a test");
    ::mprotect(base_ + pages_, kPage, PROT_NONE);
    std::memcpy(data(), bytes.data(), size_);
  }
  ~GuardedBytes() { ::munmap(base_, pages_ + kPage); }
  GuardedBytes(const GuardedBytes&) = delete;
  GuardedBytes& operator=(const GuardedBytes&) = delete;

  uint8_t* data() const { return base_ + pages_ - size_; }

 private:
  static constexpr size_t kPage = 4096;
  size_t pages_, size_;
  uint8_t* base_;
};

}  // namespace jackscrew
