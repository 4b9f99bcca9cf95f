// Detects lost ranks. Used by the communication thread alone.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <vector>

#include "parallel/mpi/requests.h"

namespace jackscrew {

// The shortest time without a sign of life after which a rank may be given up. On busy cores a
// thread may wait this long for its turn, or longer.
inline constexpr std::chrono::milliseconds kLeastTimeout{1000};

// Each rank sends every other one a byte once in a period. The byte says how far the rank has come:
// ranks may fall silent only when nobody needs another sign of life.
class Heartbeats {
 public:
  using Clock = std::chrono::steady_clock;

  // Every rank counts as alive at `now`, and as lost after `timeout` + `patience` without a byte.
  // Both are this rank's own: the period suits the least timeout that another may have.
  Heartbeats(Requests& requests, int rank, int ranks, std::chrono::milliseconds timeout,
             std::chrono::milliseconds patience, Clock::time_point now);
  Heartbeats(const Heartbeats&) = delete;
  Heartbeats& operator=(const Heartbeats&) = delete;

  // This rank has called close().
  void close() { state_ = std::max(state_, State::closing); }
  // Sends what is due. Call it at least once in a period.
  void beat(Clock::time_point now);
  // The rank that is lost; -1: none. Time in which this process itself stood still (it was stopped,
  // its machine slept) does not count.
  int lost(Clock::time_point now);
  // All ranks have called close(), and none sends anything more.
  bool all_silent() const;

 private:
  enum class State : uint8_t { working, closing, silent };
  struct Peer {
    State state = State::working;  // as far as is known
    Clock::time_point seen;
    Clock::time_point next;       // when the next byte is due
    bool sending = false;         // the last byte is still in transit
    State told = State::working;  // this rank's state in the last byte sent to it
    uint8_t in = 0, out = 0;      // lent to MPI
  };

  void listen(int rank);
  bool all_at_least(State state) const;
  template <class Condition>
  bool all_others(Condition condition) const;

  Requests& requests_;
  int rank_;
  std::chrono::milliseconds timeout_;
  State state_ = State::working;
  Clock::time_point now_;
  std::vector<Peer> peers_;  // [ranks]; this rank's own is not used
};

}  // namespace jackscrew
