// A test that hangs is to fail by its name, soon, and to show what it waits for.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

namespace jackscrew {

// Ends the process when one test takes longer than `limit`, which is far more than any needs.
class Watchdog : public ::testing::EmptyTestEventListener {
 public:
  explicit Watchdog(std::chrono::seconds limit) : limit_(limit) {
    // Signals are for the threads that tests have for them.
    sigset_t all, before;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    thread_ = std::jthread([this](const std::stop_token& stop) { watch(stop); });
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }

  void OnTestStart(const ::testing::TestInfo& test) override {
    set(fmt::format("{}.{}", test.test_suite_name(), test.name()));
  }
  void OnTestEnd(const ::testing::TestInfo&) override { set({}); }

 private:
  void set(const std::string& test) {
    const std::lock_guard lock(mutex_);
    test_ = test;
    ++tests_;
    changed_.notify_all();
  }

  void watch(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    while (!stop.stop_requested()) {
      const int64_t seen = tests_;
      const bool next = changed_.wait_for(lock, stop, limit_, [&] { return tests_ != seen; });
      if (!next && !stop.stop_requested() && !test_.empty()) give_up();
    }
  }

  [[noreturn]] void give_up() const {
    fmt::print(stderr, "{} hangs: it has taken {} s. What runs:\n", test_, limit_.count());
    const std::string processes_of_session = fmt::format(
        "ps -s {} -o pid,ppid,etimes,stat,wchan:24,args | cut -c1-200 >&2", ::getsid(0));
    const int shown = std::system(processes_of_session.c_str());
    if (shown != 0) fmt::print(stderr, "ps ended with {}\n", shown);
    ::_exit(1);
  }

  const std::chrono::seconds limit_;
  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::string test_;     // the one that runs; empty between two
  int64_t tests_ = 0;    // starts and ends so far
  std::jthread thread_;  // last: it uses the others
};

}  // namespace jackscrew
