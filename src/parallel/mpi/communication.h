// The one thread of a process that calls MPI, from its begin to its end. Others leave their wishes
// in a queue. So MPI needs no locks of its own (MPI_THREAD_MULTIPLE deadlocks in Open MPI 4.1.2,
// issue 11428), bytes flow and signs of life are given while others compute, and nobody spins.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "base/error.h"
#include "parallel/mpi/channels.h"
#include "parallel/mpi/heartbeats.h"
#include "parallel/mpi/mpi_calls.h"

namespace jackscrew {

struct CommunicationOptions {
  std::chrono::milliseconds timeout;      // without a sign of life
  std::chrono::milliseconds patience{0};  // beyond that; others need not know of it
  // Of messages. MPI says of a piece only that all of it is there: in pieces of 1 MiB the thread
  // rests while bytes flow, and 1 MB takes 3 ms between two processes on two busy cores; in pieces
  // of 256 KiB 0.8. Smaller ones are no faster, and have to be agreed on one by one.
  int64_t piece_bytes = 256 << 10;
};

class Communication : public std::enable_shared_from_this<Communication> {
 public:
  // Starts the thread and joins the others, for which a minute or the timeout is waited. Throws
  // Error(device). The thread has a share of the object: should it never come back from MPI, it
  // does no harm.
  static std::shared_ptr<Communication> start(const MpiCalls& calls,
                                              const CommunicationOptions& options);

  int rank() const { return rank_; }
  const std::vector<std::string>& hosts() const { return hosts_; }  // [ranks]

  // As Transport has them. `message.ticket` is filled in here.
  Ticket post(PendingMessage message);
  void wait(std::span<const Ticket> tickets);
  void close();
  [[noreturn]] void abort(int exit_code);
  // Ends the thread without a word to the others, unless close() has.
  void leave();

 private:
  Communication(const MpiCalls& calls, const CommunicationOptions& options);

  // What callers want of the thread.
  struct Wishes {
    std::vector<PendingMessage> messages;
    bool close = false;
    bool end = false;  // abort() or leave()
  };

  // With mutex_ held.
  void throw_failure() const;
  bool has_wishes() const;

  // Of the thread.
  void run();
  void join();
  void work();
  [[noreturn]] void refuse_lost(int rank) const;
  Wishes take_wishes();
  template <class Change>
  void tell(Change change);  // runs it with mutex_ held, and wakes the callers
  void rest(Heartbeats::Clock::time_point now, bool moved, bool waiting);
  void obey_end();

  const MpiCalls& calls_;
  const CommunicationOptions options_;
  int rank_ = 0;                         // set once joined
  std::vector<std::string> hosts_;       // as well
  Heartbeats::Clock::time_point moved_;  // of the thread: when something last happened

  std::mutex mutex_;  // of all below
  std::condition_variable wishes_changed_, results_changed_;
  Wishes wishes_;
  std::unordered_set<int64_t> unfinished_;
  int64_t next_ticket_ = 0;
  bool closing_ = false;                      // close() was called
  bool joined_ = false, finalizing_ = false;  // how far the thread has come
  bool closed_ = false, ended_ = false;       // as well
  std::optional<int> exit_code_;              // of abort()
  std::optional<Error> failure_;              // the first; all is over then
};

}  // namespace jackscrew
