// The memory of the emulated GPU.
#pragma once

#include "tests/support/guarded_pages.h"

namespace jackscrew::cuda_emulation {

inline GuardedPages& device_pages() {
  static GuardedPages pages;
  return pages;
}

}  // namespace jackscrew::cuda_emulation
