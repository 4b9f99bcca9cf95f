// How long an idle thread spins before it sleeps.
//
// By default, idle threads of libgomp spin for milliseconds. If other programs want the cores, that
// takes them from the very thread that everyone waits for: generation from Q4_1 on two cores beside
// two other programs is five times as fast without spinning. On an idle machine it is twice as fast
// with it; 300 turns, some 5 us, are enough to bridge the gaps between parallel regions
// (bench/waiting.py; docs/performance.md has the figures).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <optional>
#include <thread>

namespace jackscrew {

// Restarts the program with 300 turns of spinning in its environment, unless that says how to wait:
// libgomp reads it before main() begins. Returns where there is nothing to do, or no way to do it.
void set_spinning(char** argv);

// Whether other programs want the cores, from how long a thread that could run waited for one.
class Contention {
 public:
  // `waited` of the last `passed` nanoseconds.
  void look(int64_t waited, int64_t passed);
  bool found() const { return found_; }

 private:
  bool found_ = false;
  int calm_ = 0;  // looks in succession without waiting
};

// While it lives, threads of libgomp hardly spin whenever other programs want the cores. It does
// nothing where the environment says how to wait, or where the system gives it no threads.
class PoliteWaiting {
 public:
  PoliteWaiting();
  ~PoliteWaiting();
  PoliteWaiting(const PoliteWaiting&) = delete;
  PoliteWaiting& operator=(const PoliteWaiting&) = delete;

 private:
  void watch();
  // Whether it is to end; waits so long for that.
  bool ends_within(std::chrono::milliseconds time);

  int schedstat_ = -1;  // /proc/self/schedstat
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread watcher_;
};

}  // namespace jackscrew
