// How commands react to signals that ask them to end.
#pragma once

#include <array>
#include <atomic>
#include <csignal>
#include <map>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/signals.h"

namespace jackscrew {

// Ctrl-C, a kill, and a terminal that was closed.
inline constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

// Counts what is asked by signals, each kind by itself. GNU timeout, and shells, send a signal to a
// process and to its group: what comes twice within kOneRequest is one request, as no person asks
// twice within that time.
class SignalRequests {
 public:
  // Which request of its kind a signal is, from 1 on; 0 if it belongs to the one before.
  int receive(int signal) {
    constexpr double kOneRequest = 0.1;  // seconds
    Kind& kind = kinds_[signal];
    if (kind.count > 0 && kind.since.seconds() < kOneRequest) return 0;
    kind.since = Stopwatch();
    return ++kind.count;
  }

 private:
  struct Kind {
    int count = 0;
    Stopwatch since;  // the last request
  };
  std::map<int, Kind> kinds_;
};

// For commands that write a model: the first request makes check() throw, so that the command ends
// without leaving a trace; the second of the same kind ends the process at once.
class Interruption {
 public:
  void receive(int signal) {
    if (requests_.receive(signal) > 1) end_by(signal);
    asked_.store(true);
  }
  // Called as work proceeds. Throws Error(interrupted).
  void check() const {
    if (asked_) throw Error(ErrorKind::interrupted, "interrupted: nothing was written");
  }

 private:
  SignalRequests requests_;
  std::atomic<bool> asked_{false};
};

}  // namespace jackscrew
