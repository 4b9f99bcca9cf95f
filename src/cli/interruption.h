// How commands that write a model react to signals.
#pragma once

#include <array>
#include <atomic>
#include <csignal>

#include "base/error.h"
#include "base/signals.h"

namespace jackscrew {

// Ctrl-C, a kill, and a terminal that was closed.
inline constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

// The first signal makes check() throw, so that the command ends without leaving a trace; the
// second ends the process at once.
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
