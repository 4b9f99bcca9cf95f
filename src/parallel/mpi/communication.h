// The one thread of a process that calls MPI, from MPI_Init to MPI_Finalize. Other threads leave
// their requests in a queue. So MPI needs no locks of its own (MPI_THREAD_MULTIPLE deadlocks in
// Open MPI 4.1.2, issue 11428), bytes flow and signs of life are given while others compute, and
// nobody spins.
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
  std::chrono::milliseconds patience{0};  // beyond that; may differ from rank to rank
  // Size of the pieces of a message. MPI reports a piece only when all of it has arrived: with
  // pieces of 1 MiB the thread rests while bytes flow, and 1 MB takes 3 ms between two processes on
  // two busy cores; with pieces of 256 KiB it takes 0.8 ms. Smaller ones are no faster, and each
  // needs a handshake.
  int64_t piece_bytes = 256 << 10;
};

class Communication {
 public:
  // Starts the thread and joins the other ranks, for which it waits a minute or, if longer, the
  // timeout, and its patience. Throws Error(device), and Error(usage) for a timeout below 1 s. The
  // thread shares ownership of the object, so that it does no harm should it never return from MPI.
  static std::shared_ptr<Communication> start(const MpiCalls& calls,
                                              const CommunicationOptions& options);

  int rank() const { return rank_; }
  const std::vector<std::string>& hosts() const { return hosts_; }  // [ranks]

  // These do what Transport says of functions of these names. post() fills in `message.ticket`.
  Ticket post(PendingMessage message);
  void wait(std::span<const Ticket> tickets);
  void close();
  [[noreturn]] void abort(int exit_code);
  // Ends the thread without telling the other ranks, unless close() has ended it.
  void leave();

 private:
  Communication(const MpiCalls& calls, const CommunicationOptions& options);

  // What callers ask of the thread.
  struct Wishes {
    std::vector<PendingMessage> messages;
    bool close = false;
    bool end = false;  // abort() or leave()
  };

  // Called with mutex_ held.
  void throw_failure() const;
  bool has_wishes() const;

  // Run by the thread.
  void run();
  void join();
  void work();
  [[noreturn]] void refuse_lost(int rank) const;
  Wishes take_wishes();
  template <class Change>
  void notify(Change change);  // runs it with mutex_ held, and wakes the callers
  void rest(Heartbeats::Clock::time_point now, bool moved, bool waiting);
  void finish();

  const MpiCalls& calls_;
  const CommunicationOptions options_;
  int rank_ = 0;                         // set once joined
  std::vector<std::string> hosts_;       // as well
  Heartbeats::Clock::time_point moved_;  // the thread's own: when something last happened

  std::mutex mutex_;  // guards all below
  std::condition_variable wishes_changed_, results_changed_;
  Wishes wishes_;
  std::unordered_set<int64_t> unfinished_;
  int64_t next_ticket_ = 0;
  bool closing_ = false;                      // close() was called
  bool joined_ = false, finalizing_ = false;  // how far the thread has come
  bool closed_ = false, ended_ = false;       // as well
  std::optional<int> exit_code_;              // of abort()
  std::optional<Error> failure_;              // the first failure, which ends everything
};

}  // namespace jackscrew
