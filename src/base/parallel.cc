#include "base/parallel.h"

#include <thread>

namespace jackscrew {

void require_threads() {
  static const bool started = [] {
    std::thread([] {}).join();
    return true;
  }();
  static_cast<void>(started);
}

}  // namespace jackscrew
