#include "cli/waiting.h"

#include <fcntl.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>
#include <system_error>

#include "base/parallel.h"
#include "base/process_memory.h"
#include "base/signals.h"

namespace jackscrew {

namespace {

using Clock = std::chrono::steady_clock;

// Less loses on an idle machine: 100 turns have 68 % of its best speed. More wins nothing there.
constexpr const char* kSpinning = "300";
// Ten looks a second take some 0.02 % of a core.
constexpr std::chrono::milliseconds kInterval{100};

bool environment_decides() {
  const char* spinning = std::getenv("GOMP_SPINCOUNT");
  return std::getenv("OMP_WAIT_POLICY") != nullptr ||
         (spinning != nullptr && std::string_view(spinning) != kSpinning);
}

// libgomp spins no more than 100 turns while it has more threads than there are cores, those that
// compute among them. So while this lives, it has more: they sleep.
class ThreadsToSpare {
 public:
  // Throws std::system_error where the system does not let so many threads live.
  ThreadsToSpare() {
    // Of a team libgomp does not count the thread that starts it, but for the main thread.
    const int threads = std::max(2, omp_get_num_procs() - most_threads() + 2);
    try_threads(threads);
    // They belong to the thread that starts them, and end with it.
    owner_ = std::thread([this, threads] {
      ::prctl(PR_SET_NAME, "spare");  // as `top -H` shows them
#pragma omp parallel num_threads(threads)
      {
        // The compiler would leave out a region that does nothing.
        asm volatile("");
      }
      std::unique_lock lock(mutex_);
      ends_.wait(lock, [this] { return ended_; });
    });
  }
  ~ThreadsToSpare() {
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    ends_.notify_one();
    owner_.join();
  }
  ThreadsToSpare(const ThreadsToSpare&) = delete;
  ThreadsToSpare& operator=(const ThreadsToSpare&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable ends_;
  bool ended_ = false;
  std::thread owner_;
};

// Nanoseconds that the main thread could have run and had no core, since it began; nothing where
// the kernel does not count them.
std::optional<int64_t> waited_for_a_core(int schedstat) {
  std::array<char, 64> text{};  // "RUN WAITED SLICES"
  if (::pread(schedstat, text.data(), text.size() - 1, 0) <= 0) return std::nullopt;
  const char* waited = std::strchr(text.data(), ' ');
  if (waited == nullptr) return std::nullopt;
  return std::strtoll(waited, nullptr, 10);
}

}  // namespace

void set_spinning(char** argv) {
  // If it were started through /proc/self/exe alone, top, pgrep and pkill would call the process
  // "exe".
  ::prctl(PR_SET_NAME, ::program_invocation_short_name);
  // Where the loader was asked to start the program, /proc/self/exe is the loader, which would take
  // the first argument for a program.
  if (::getauxval(AT_BASE) == 0) return;
  if (std::getenv("OMP_WAIT_POLICY") != nullptr || std::getenv("GOMP_SPINCOUNT") != nullptr) return;
  if (::setenv("GOMP_SPINCOUNT", kSpinning, 1) != 0) return;
  ::execv("/proc/self/exe", argv);  // returns only on failure; then the default has to do
}

void Contention::look(int64_t waited, int64_t passed) {
  // Beside one program on its core a thread waits for half of its time; beside the little that a
  // machine does of its own, for one part in a hundred.
  constexpr int64_t kShare = 10;
  // Long enough that a program which computes by fits and starts counts as one that computes.
  constexpr int kCalmLooks = 20;
  const bool waits = kShare * waited > passed;
  calm_ = waits ? 0 : calm_ + 1;
  if (waits) found_ = true;
  if (calm_ >= kCalmLooks) found_ = false;
}

PoliteWaiting::PoliteWaiting() {
  if (environment_decides()) return;
  if (address_limit()) return;  // what it leaves is not to be spent on stacks
  schedstat_ = ::open("/proc/self/schedstat", O_RDONLY | O_CLOEXEC);
  if (schedstat_ < 0) return;
  const SignalsBlocked blocked;  // in its threads, too: none of them may take a signal
  try {
    watcher_ = std::thread([this] { watch(); });
  } catch (const std::system_error&) {
    // Then threads spin as they were told at the start.
  }
}

PoliteWaiting::~PoliteWaiting() {
  {
    const std::lock_guard lock(mutex_);
    ended_ = true;
  }
  ends_.notify_one();
  if (watcher_.joinable()) watcher_.join();
  if (schedstat_ >= 0) ::close(schedstat_);
}

void PoliteWaiting::watch() {
  Contention contention;
  std::optional<ThreadsToSpare> spare;
  std::optional<int64_t> before = waited_for_a_core(schedstat_);
  Clock::time_point then = Clock::now();
  while (before && !ends_within(kInterval)) {
    const std::optional<int64_t> after = waited_for_a_core(schedstat_);
    const Clock::time_point now = Clock::now();
    if (!after) return;
    contention.look(*after - *before, std::chrono::nanoseconds(now - then).count());
    before = after;
    then = now;
    if (!contention.found()) {
      spare.reset();
    } else if (!spare) {
      try {
        spare.emplace();
      } catch (const std::exception&) {
        return;  // the system has no threads for this
      }
    }
  }
}

bool PoliteWaiting::ends_within(std::chrono::milliseconds time) {
  std::unique_lock lock(mutex_);
  return ends_.wait_for(lock, time, [this] { return ended_; });
}

}  // namespace jackscrew
