// How commands that write a model end when they are asked to.
#pragma once

#include <atomic>

#include "base/error.h"
#include "base/signals.h"

namespace jackscrew {

// What has been asked to end goes without a trace; the second time, at once.
class Interruption {
 public:
  void receive(int signal) {
    if (asked_.exchange(true)) end_by(signal);
  }
  // Called as work proceeds. Throws Error(interrupted).
  void check() const {
    if (asked_) throw Error(ErrorKind::interrupted, "interrupted: nothing was written");
  }

 private:
  std::atomic<bool> asked_{false};
};

}  // namespace jackscrew
