#include "parallel/mpi/communication.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <thread>
#include <utility>

#include "base/signals.h"

namespace jackscrew {

namespace {

using Clock = Heartbeats::Clock;
using namespace std::chrono_literals;

// Time for the launcher to start all processes, on machines that may be busy or remote.
constexpr auto kJoinTime = 60s;
// mpirun ends all processes within a second or two.
constexpr auto kAbortGrace = 5s;
constexpr auto kLeaveGrace = 1s;

// While bytes are awaited, the thread polls for the first 20 us, then pauses for a share of the
// wait so far, because computing threads may want this core. A message is noticed late by a quarter
// of the wait, at most 0.2 ms; after 20 ms by 1 % of the wait, at most 1 ms. A rank that waits for
// long costs 3 % of a core.
constexpr auto kSpin = 20us;
constexpr std::chrono::microseconds kFirstPause = 10us, kLongPause = 200us, kLongestPause = 1ms;
constexpr int kPauseShare = 4, kLongPauseShare = 100;
// While nothing is awaited, a wish wakes the thread; the pause only serves the signs of life.
constexpr std::chrono::microseconds kIdlePause = 50ms;
// Sleeps end up to 50 us late unless the kernel is asked for more precision.
constexpr unsigned long kTimerSlackNs = 1000;

// Restores the signal handlers that MPI_Init replaces. Open MPI's handlers for faults run on the
// stack of the thread, which base/signals.h forbids.
class HandlersKept {
 public:
  HandlersKept() {
    for (size_t i = 1; i < before_.size(); ++i)
      ::sigaction(static_cast<int>(i), nullptr, &before_[i]);
  }
  ~HandlersKept() {
    for (size_t i = 1; i < before_.size(); ++i)
      ::sigaction(static_cast<int>(i), &before_[i], nullptr);
  }
  HandlersKept(const HandlersKept&) = delete;
  HandlersKept& operator=(const HandlersKept&) = delete;

 private:
  std::array<struct sigaction, 32> before_{};  // [signal]; signals above are the C library's own
};

std::chrono::microseconds pause_after(Clock::duration wait) {
  const auto quiet = std::chrono::duration_cast<std::chrono::microseconds>(wait);
  return std::max(std::clamp(quiet / kPauseShare, kFirstPause, kLongPause),
                  std::min(quiet / kLongPauseShare, kLongestPause));
}

double seconds(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

void check_mpi(const MpiCalls& calls, int error, const char* what) {
  if (error == 0) return;
  std::array<char, kMpiTextBytes> text{};
  calls.error_text(error, text.data());
  fail(ErrorKind::device, "{} failed: {}", what, text.data());
}

}  // namespace

Communication::Communication(const MpiCalls& calls, const CommunicationOptions& options)
    : calls_(calls), options_(options) {
  if (options.timeout < kLeastTimeout) {
    fail(ErrorKind::usage, "communication_timeout is {} s; it must be {} s at least",
         seconds(options.timeout), seconds(kLeastTimeout));
  }
}

std::shared_ptr<Communication> Communication::start(const MpiCalls& calls,
                                                    const CommunicationOptions& options) {
  const std::shared_ptr<Communication> out(new Communication(calls, options));
  {
    // The thread, and those that MPI starts from it, inherit the blocked signals.
    const SignalsBlocked blocked;
    std::thread([out] { out->run(); }).detach();
  }
  std::unique_lock lock(out->mutex_);
  const auto limit =
      std::max<std::chrono::milliseconds>(kJoinTime, options.timeout) + options.patience;
  const bool heard = out->results_changed_.wait_for(
      lock, limit, [&] { return out->joined_ || out->failure_.has_value(); });
  out->throw_failure();
  if (!heard) {
    throw Error(ErrorKind::device,
                fmt::format("the other ranks did not join within {} s", seconds(limit)),
                "see whether all processes were started, and the network between the machines");
  }
  return out;
}

Ticket Communication::post(PendingMessage message) {
  const std::lock_guard lock(mutex_);
  throw_failure();
  if (closing_) fail(ErrorKind::generic, "a message after the end of communication");
  message.ticket = {next_ticket_++};
  unfinished_.insert(message.ticket.id);
  wishes_.messages.push_back(message);
  wishes_changed_.notify_one();
  return message.ticket;
}

void Communication::wait(std::span<const Ticket> tickets) {
  std::unique_lock lock(mutex_);
  results_changed_.wait(lock, [&] {
    return failure_ || std::none_of(tickets.begin(), tickets.end(),
                                    [&](Ticket ticket) { return unfinished_.contains(ticket.id); });
  });
  throw_failure();
}

void Communication::close() {
  std::unique_lock lock(mutex_);
  throw_failure();
  if (!unfinished_.empty())
    fail(ErrorKind::generic, "communication ends with messages on their way");
  closing_ = wishes_.close = true;
  wishes_changed_.notify_one();
  // Without a limit: the others may still be working, and give signs of life.
  results_changed_.wait(lock, [&] { return finalizing_ || failure_; });
  throw_failure();
  if (!results_changed_.wait_for(lock, options_.timeout, [&] { return closed_ || failure_; })) {
    fail(ErrorKind::device, "the ranks did not end together within {} s",
         seconds(options_.timeout));
  }
  throw_failure();
}

void Communication::abort(int exit_code) {
  {
    std::unique_lock lock(mutex_);
    exit_code_ = exit_code;
    wishes_.end = true;
    wishes_changed_.notify_one();
    // MPI_Abort is expected to end the process during this wait.
    results_changed_.wait_for(lock, kAbortGrace, [] { return false; });
  }
  ::_exit(exit_code);
}

void Communication::leave() {
  std::unique_lock lock(mutex_);
  wishes_.end = true;
  wishes_changed_.notify_one();
  results_changed_.wait_for(lock, kLeaveGrace, [&] { return ended_; });
}

void Communication::throw_failure() const {
  if (failure_) throw Error(*failure_);
}

void Communication::run() {
  ::prctl(PR_SET_TIMERSLACK, kTimerSlackNs);
  std::optional<Error> failure;
  try {
    join();
    work();
  } catch (const Error& error) {
    failure = error;
  } catch (const std::exception& error) {  // out of memory
    failure.emplace(ErrorKind::generic, fmt::format("communication failed: {}", error.what()));
  }
  notify([&] { failure_ = failure; });
  finish();
  notify([&] { ended_ = true; });
}

void Communication::join() {
  int ranks = 0;
  {
    const HandlersKept kept;
    check_mpi(calls_, calls_.init(&rank_, &ranks), "MPI_Init");
  }
  std::vector<char> names(static_cast<size_t>(ranks) * kMpiTextBytes);
  check_mpi(calls_, calls_.host_names(names.data()), "MPI_Allgather");
  for (size_t i = 0; i < static_cast<size_t>(ranks); ++i) {
    const char* const name = names.data() + i * kMpiTextBytes;
    hosts_.emplace_back(name, ::strnlen(name, kMpiTextBytes));
  }
}

void Communication::work() {
  Requests requests(calls_, hosts_);
  Channels channels(requests, options_.piece_bytes);
  moved_ = Clock::now();
  Heartbeats heartbeats(requests, rank_, static_cast<int>(hosts_.size()), options_.timeout,
                        options_.patience, moved_);
  notify([&] { joined_ = true; });
  bool closing = false;
  while (!heartbeats.all_silent()) {
    const Wishes wishes = take_wishes();
    if (wishes.end) return;
    for (const PendingMessage& message : wishes.messages) channels.add(message);
    closing |= wishes.close;
    if (closing) heartbeats.close();
    heartbeats.beat(Clock::now());
    const int done = requests.poll();
    if (const std::vector<Ticket> tickets = channels.take_done(); !tickets.empty()) {
      notify([&] {
        for (const Ticket ticket : tickets) unfinished_.erase(ticket.id);
      });
    }
    const Clock::time_point now = Clock::now();
    if (const int rank = heartbeats.lost(now); rank >= 0) refuse_lost(rank);
    rest(now, done > 0 || !wishes.messages.empty(), closing || !channels.empty());
  }
  notify([&] { finalizing_ = true; });
  check_mpi(calls_, calls_.finalize(), "MPI_Finalize");
  notify([&] { closed_ = true; });
}

void Communication::refuse_lost(int rank) const {
  const auto& host = hosts_[static_cast<size_t>(rank)];
  throw Error(ErrorKind::device,
              fmt::format("rank {} on {} gave no sign of life for {} s", rank, host,
                          seconds(options_.timeout + options_.patience)),
              fmt::format("see whether that process still runs, and the network between {} and {}",
                          host, hosts_[static_cast<size_t>(rank_)]));
}

bool Communication::has_wishes() const {
  return !wishes_.messages.empty() || wishes_.close || wishes_.end;
}

Communication::Wishes Communication::take_wishes() {
  const std::lock_guard lock(mutex_);
  Wishes out = std::exchange(wishes_, {});
  wishes_.end = out.end;  // stays set
  return out;
}

template <class Change>
void Communication::notify(Change change) {
  const std::lock_guard lock(mutex_);
  change();
  results_changed_.notify_all();
}

void Communication::rest(Clock::time_point now, bool moved, bool waiting) {
  if (moved) moved_ = now;
  if (waiting && now - moved_ < kSpin) {
    std::this_thread::yield();
    return;
  }
  const std::chrono::microseconds pause = waiting ? pause_after(now - moved_) : kIdlePause;
  std::unique_lock lock(mutex_);
  wishes_changed_.wait_for(lock, pause, [&] { return has_wishes(); });
}

// After a failure MPI is not called any more, except to abort: it would go on to write to bytes
// that are lent no longer.
void Communication::finish() {
  std::unique_lock lock(mutex_);
  wishes_changed_.wait(lock, [&] { return wishes_.end; });
  const std::optional<int> exit_code = exit_code_;
  lock.unlock();
  if (exit_code) calls_.abort(*exit_code);
}

}  // namespace jackscrew
