#include "parallel/mpi/heartbeats.h"

#include <span>

namespace jackscrew {

namespace {

constexpr int kHeartbeatTag = 100;  // differs from every Tag of transport.h
// A few bytes may be late before a rank is given up, by whoever waits the least.
constexpr int kBeatsInTimeout = 4;
constexpr std::chrono::milliseconds kPeriod = kLeastTimeout / kBeatsInTimeout;
// The communication thread calls lost() every 50 ms at least, unless its process was stopped.
constexpr std::chrono::milliseconds kStoodStill{500};

}  // namespace

Heartbeats::Heartbeats(Requests& requests, int rank, int ranks, std::chrono::milliseconds timeout,
                       std::chrono::milliseconds patience, Clock::time_point now)
    : requests_(requests),
      rank_(rank),
      timeout_(timeout + patience),
      now_(now),
      peers_(static_cast<size_t>(ranks)) {
  for (Peer& peer : peers_) peer.seen = peer.next = now;
  for (int other = 0; other < ranks; ++other) {
    if (other != rank) listen(other);
  }
}

void Heartbeats::listen(int rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  requests_.receive(rank, kHeartbeatTag, std::span(&peer.in, 1), [this, rank, &peer] {
    peer.seen = now_;
    peer.state = static_cast<State>(peer.in);
    // `silent` is a rank's last byte.
    if (peer.state != State::silent) listen(rank);
  });
}

void Heartbeats::beat(Clock::time_point now) {
  // A rank may fall silent only once all are closing: nobody waits for its signs of life then.
  if (state_ == State::closing && all_at_least(State::closing)) state_ = State::silent;
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank == rank_ || peer.sending || peer.told == State::silent) continue;
    if (now < peer.next && peer.told == state_) continue;
    peer.out = static_cast<uint8_t>(state_);
    peer.told = state_;
    peer.next = now + kPeriod;
    peer.sending = true;
    requests_.send(rank, kHeartbeatTag, std::span(&peer.out, 1), [&peer] { peer.sending = false; });
  }
}

int Heartbeats::lost(Clock::time_point now) {
  const auto passed = now - now_;
  now_ = now;
  if (passed > kStoodStill) {
    for (Peer& peer : peers_) peer.seen += passed;
  }
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    const Peer& peer = peers_[static_cast<size_t>(rank)];
    if (rank != rank_ && peer.state != State::silent && now - peer.seen > timeout_) return rank;
  }
  return -1;
}

bool Heartbeats::all_at_least(State state) const {
  return all_others([&](const Peer& peer) { return peer.state >= state; });
}

bool Heartbeats::all_silent() const {
  return state_ == State::silent && all_others([](const Peer& peer) {
           return peer.state == State::silent && peer.told == State::silent && !peer.sending;
         });
}

template <class Condition>
bool Heartbeats::all_others(Condition condition) const {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
    if (rank != rank_ && !condition(peers_[static_cast<size_t>(rank)])) return false;
  }
  return true;
}

}  // namespace jackscrew
