// Sends and receives messages in pieces. Used by the communication thread alone.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "parallel/mpi/requests.h"
#include "parallel/transport.h"

namespace jackscrew {

struct PendingMessage {
  int peer;
  Tag tag;
  Ticket ticket;
  std::span<const uint8_t> sent;  // the bytes to send, if is_send
  std::span<uint8_t> received;    // else where received bytes go
  bool is_send;
};

// MPI counts in int, and reports a request only when all of it is done. In pieces a message may
// have any size, and the communication thread sees that bytes flow. Pieces need no sequence
// numbers: messages of one tag between two ranks are the same sequence of pieces on both sides. The
// last piece of a message is always shorter than the others, empty if need be, so that messages of
// different sizes cannot be mistaken for each other.
class Channels {
 public:
  Channels(Requests& requests, int64_t piece_bytes)
      : requests_(requests), piece_bytes_(piece_bytes) {}

  void add(const PendingMessage& message);
  bool empty() const { return messages_ == 0; }
  // The messages that were completed since the last call.
  std::vector<Ticket> take_done();

 private:
  struct Progress {
    PendingMessage message;
    int64_t begun = 0;  // in pieces, as is `done`
    int64_t done = 0;
  };
  struct Channel {
    std::list<Progress> messages;
    int64_t in_flight = 0;  // pieces
  };

  int64_t pieces_of(const PendingMessage& message) const;
  void begin_pieces(Channel& channel);
  void begin_piece(Channel& channel, std::list<Progress>::iterator progress);
  void end_piece(Channel& channel, std::list<Progress>::iterator progress);

  Requests& requests_;
  int64_t piece_bytes_;
  std::map<std::tuple<bool, int, Tag>, Channel> channels_;  // sent or received, peer, tag
  int64_t messages_ = 0;                                    // of all channels
  std::vector<Ticket> done_;
};

}  // namespace jackscrew
