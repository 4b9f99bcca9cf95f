#include "base/signals.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <thread>
#include <utility>
#include <vector>

#include "base/map_guard.h"

namespace jackscrew {

namespace {

// Caused by an instruction of the thread itself: if they were blocked, the kernel would kill the
// process without a word.
constexpr std::array kSynchronous = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS, SIGABRT};
// Their default actions run no code of the process, and must go on working.
constexpr std::array kLeftAlone = {SIGTSTP, SIGTTIN, SIGTTOU, SIGCONT, SIGPIPE};
constexpr std::array kIgnoredByDefault = {SIGCHLD, SIGURG, SIGWINCH};
// Wakes the waiting thread so that it ends; by default it does nothing.
constexpr int kWake = SIGURG;

template <class Signals>
bool contains(const Signals& signals, int signal) {
  return std::find(signals.begin(), signals.end(), signal) != signals.end();
}

sigset_t asynchronous_signals() {
  sigset_t set;
  ::sigfillset(&set);
  for (const int signal : kSynchronous) ::sigdelset(&set, signal);
  return set;
}

}  // namespace

SignalsBlocked::SignalsBlocked() {
  ensure_signal_stack();
  static const sigset_t kBlocked = asynchronous_signals();
  ::pthread_sigmask(SIG_BLOCK, &kBlocked, &before_);
}

SignalsBlocked::~SignalsBlocked() {
  ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
}

class SignalThread::Waiter {
 public:
  Waiter(std::span<const int> signals, Action action)
      : signals_(signals.begin(), signals.end()), action_(std::move(action)) {
    waited_ = asynchronous_signals();
    for (const int signal : kLeftAlone) ::sigdelset(&waited_, signal);
    for (int signal = 1; signal < NSIG; ++signal) {
      if (is_ignored(signal) && signal != kWake) ::sigdelset(&waited_, signal);
    }
    ::pthread_sigmask(SIG_BLOCK, &waited_, nullptr);
    thread_ = std::thread([this] { wait(); });
  }

  ~Waiter() {
    ended_.store(true);
    ::pthread_kill(thread_.native_handle(), kWake);
    thread_.join();
  }

  Waiter(const Waiter&) = delete;
  Waiter& operator=(const Waiter&) = delete;

 private:
  void wait() {
    for (;;) {
      int signal = 0;
      if (::sigwait(&waited_, &signal) != 0) continue;
      if (ended_.load()) return;
      if (contains(signals_, signal)) {
        action_(signal);
      } else if (!contains(kIgnoredByDefault, signal)) {
        end_by(signal);
      }
    }
  }

  std::vector<int> signals_;
  Action action_;
  sigset_t waited_;
  std::atomic<bool> ended_{false};
  std::thread thread_;
};

SignalThread::SignalThread(std::span<const int> signals, Action action)
    : waiter_(std::make_unique<Waiter>(signals, std::move(action))) {}

SignalThread::~SignalThread() = default;

bool is_ignored(int signal) {
  struct sigaction now = {};
  return ::sigaction(signal, nullptr, &now) == 0 && now.sa_handler == SIG_IGN;
}

void end_by(int signal) {
  std::signal(signal, SIG_DFL);
  sigset_t one;
  ::sigemptyset(&one);
  ::sigaddset(&one, signal);
  ::pthread_sigmask(SIG_UNBLOCK, &one, nullptr);
  ::raise(signal);
  ::_exit(128 + signal);  // for a signal that ends nothing by default
}

}  // namespace jackscrew
