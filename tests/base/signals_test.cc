// Signals come on a thread of their own, and do what they always did where nobody asked for them.
#include "base/signals.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <thread>
#include <vector>

namespace jackscrew {
namespace {

// What arrived, in order, and on which thread.
class Arrivals {
 public:
  void add(int signal) {
    const std::lock_guard lock(mutex_);
    signals_.push_back(signal);
    thread_ = std::this_thread::get_id();
    changed_.notify_all();
  }
  std::vector<int> wait_for(size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return signals_.size() >= count; });
    return signals_;
  }
  std::thread::id thread() const { return thread_; }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int> signals_;
  std::thread::id thread_;
};

bool is_blocked(int signal) {
  sigset_t now;
  ::pthread_sigmask(SIG_SETMASK, nullptr, &now);
  return ::sigismember(&now, signal) == 1;
}

// How a child process ends that does `work`: its exit code, or minus the signal that ended it.
template <class Work>
int end_of_child(const Work& work) {
  const pid_t child = ::fork();
  if (child == 0) {
    work();
    ::_exit(0);
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

// Gives a test's thread its signals back, which a SignalThread leaves blocked.
class Signals : public ::testing::Test {
 protected:
  Signals() { ::pthread_sigmask(SIG_SETMASK, nullptr, &before_); }
  ~Signals() override { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }

 private:
  sigset_t before_;
};

TEST_F(Signals, ComeOnAThreadOfTheirOwn) {
  // A child has no threads of earlier tests, which would get the signals.
  EXPECT_EQ(end_of_child([] {
              Arrivals arrivals;
              const SignalThread thread(std::array{SIGUSR1, SIGTERM},
                                        [&](int signal) { arrivals.add(signal); });
              ::kill(::getpid(), SIGUSR1);
              if (arrivals.wait_for(1) != std::vector<int>({SIGUSR1})) ::_exit(1);
              ::kill(::getpid(), SIGTERM);
              if (arrivals.wait_for(2) != std::vector<int>({SIGUSR1, SIGTERM})) ::_exit(2);
              if (arrivals.thread() == std::this_thread::get_id()) ::_exit(3);
            }),
            0);
}

TEST_F(Signals, AreBlockedOnThisThreadAndOnLaterOnes) {
  const std::array several = {SIGINT, SIGTERM, SIGPROF, SIGALRM, SIGWINCH, SIGCHLD, SIGRTMIN};
  {
    const SignalThread thread(std::array{SIGINT}, [](int) {});
    std::thread([&] {
      for (const int signal : several) EXPECT_TRUE(is_blocked(signal)) << signal;
    }).join();
    for (const int signal : several) EXPECT_TRUE(is_blocked(signal)) << signal;
    for (const int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGTSTP, SIGCONT, SIGPIPE}) {
      EXPECT_FALSE(is_blocked(signal)) << signal;
    }
  }
}

TEST_F(Signals, ThatComeAfterTheEndMakeNoFailureOfIt) {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    EXPECT_EQ(end_of_child([&] {
                {
                  const SignalThread thread(std::array{SIGUSR1}, [](int) {});
                }
                ::kill(::getpid(), signal);
              }),
              0);
  }
}

TEST_F(Signals, DoAsEverWhereNobodyAskedForThem) {
  const auto child_after = [](int signal) {
    return end_of_child([&] {
      Arrivals arrivals;
      const SignalThread thread(std::array{SIGUSR1}, [&](int got) { arrivals.add(got); });
      ::kill(::getpid(), signal);
      ::kill(::getpid(), SIGUSR1);
      arrivals.wait_for(1);
      ::usleep(1000);
    });
  };
  EXPECT_EQ(child_after(SIGWINCH), 0);
  EXPECT_EQ(child_after(SIGCHLD), 0);
  const auto ended_by = [](int signal) {
    return end_of_child([&] {
      const SignalThread thread(std::array{SIGUSR1}, [](int) {});
      ::kill(::getpid(), signal);
      for (;;) ::pause();
    });
  };
  EXPECT_EQ(ended_by(SIGTERM), -SIGTERM);
  EXPECT_EQ(ended_by(SIGALRM), -SIGALRM);
}

TEST_F(Signals, ThatWereIgnoredStayIgnored) {
  EXPECT_EQ(end_of_child([] {
              std::signal(SIGHUP, SIG_IGN);
              std::signal(SIGTERM, SIG_IGN);
              Arrivals arrivals;
              const SignalThread thread(std::array{SIGUSR1, SIGTERM},
                                        [&](int got) { arrivals.add(got); });
              ::kill(::getpid(), SIGHUP);
              ::kill(::getpid(), SIGTERM);
              ::kill(::getpid(), SIGUSR1);
              if (arrivals.wait_for(1) != std::vector<int>({SIGUSR1})) ::_exit(1);
            }),
            0);
}

TEST_F(Signals, AProcessCanEndByOneThatIsBlocked) {
  EXPECT_EQ(end_of_child([] {
              const SignalThread thread(std::array{SIGINT}, [](int signal) { end_by(signal); });
              ::kill(::getpid(), SIGINT);
              for (;;) ::pause();
            }),
            -SIGINT);
}

TEST_F(Signals, WaitWhileTheyAreBlocked) {
  static volatile std::sig_atomic_t handled;
  handled = 0;
  const auto before = std::signal(SIGUSR2, [](int) { handled = 1; });
  {
    const SignalsBlocked blocked;
    std::raise(SIGUSR2);
    EXPECT_EQ(handled, 0);
  }
  EXPECT_EQ(handled, 1);
  std::signal(SIGUSR2, before);
}

}  // namespace
}  // namespace jackscrew
