// Memory of a device, as the host sees it: not at all.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>

#include "base/error.h"

namespace jackscrew {

// Addresses of the device, of which each is given once.
class GuardedPages {
 public:
  GuardedPages() {
    void* data =
        ::mmap(nullptr, kReserved, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) fail(ErrorKind::generic, "cannot reserve guarded pages");
    base_ = static_cast<uint8_t*>(data);
  }
  ~GuardedPages() { ::munmap(base_, kReserved); }
  GuardedPages(const GuardedPages&) = delete;
  GuardedPages& operator=(const GuardedPages&) = delete;

  void* take(size_t bytes) {
    if (bytes > kReserved - used_) fail(ErrorKind::does_not_fit, "guarded pages are used up");
    uint8_t* data = base_ + used_;
    used_ += (bytes + kPage - 1) / kPage * kPage;
    return data;
  }
  // The bytes are gone, the addresses stay taken.
  void give_back(void* data, size_t bytes) {
    ::madvise(data, (bytes + kPage - 1) / kPage * kPage, MADV_DONTNEED);
  }
  bool holds(const void* address) const {
    const auto* at = static_cast<const uint8_t*>(address);
    return at >= base_ && at < base_ + used_;
  }
  // Whether an address is the device's, given already or not: never the host's.
  bool reserves(const void* address) const {
    const auto* at = static_cast<const uint8_t*>(address);
    return at >= base_ && at < base_ + kReserved;
  }
  // Calls may be nested.
  void open() {
    if (depth_++ == 0) protect(PROT_READ | PROT_WRITE);
  }
  void close() {
    if (--depth_ == 0) protect(PROT_NONE);
  }

 private:
  static constexpr size_t kReserved = size_t{64} << 30;
  static constexpr size_t kPage = 4096;

  void protect(int mode) {
    if (used_ > 0 && ::mprotect(base_, used_, mode) != 0) {
      fail(ErrorKind::generic, "cannot protect guarded pages");
    }
  }

  uint8_t* base_;
  size_t used_ = 0;
  int depth_ = 0;
};

// Open as long as it lives.
class OpenedPages {
 public:
  explicit OpenedPages(GuardedPages& pages) : pages_(pages) { pages_.open(); }
  ~OpenedPages() { pages_.close(); }
  OpenedPages(const OpenedPages&) = delete;
  OpenedPages& operator=(const OpenedPages&) = delete;

 private:
  GuardedPages& pages_;
};

}  // namespace jackscrew
