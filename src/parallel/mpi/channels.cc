#include "parallel/mpi/channels.h"

#include <algorithm>
#include <utility>

#include "base/checked.h"

namespace jackscrew {

namespace {

// For each channel: enough that handshakes of the next pieces overlap with the copy of one, few
// enough that MPI need not search through thousands of requests.
constexpr int64_t kPiecesInFlight = 8;

size_t size_of(const PendingMessage& message) {
  return message.is_send ? message.sent.size() : message.received.size();
}

}  // namespace

void Channels::add(const PendingMessage& message) {
  Channel& channel = channels_[{message.is_send, message.peer, message.tag}];
  channel.messages.push_back({.message = message});
  ++messages_;
  begin_pieces(channel);
}

std::vector<Ticket> Channels::take_done() {
  return std::exchange(done_, {});
}

int64_t Channels::pieces_of(const PendingMessage& message) const {
  return narrow<int64_t>(size_of(message)) / piece_bytes_ + 1;
}

void Channels::begin_pieces(Channel& channel) {
  for (auto at = channel.messages.begin(); at != channel.messages.end(); ++at) {
    const int64_t pieces = pieces_of(at->message);
    while (at->begun < pieces) {
      if (channel.in_flight == kPiecesInFlight) return;
      begin_piece(channel, at);
    }
  }
}

void Channels::begin_piece(Channel& channel, std::list<Progress>::iterator progress) {
  const PendingMessage& message = progress->message;
  const auto begin = static_cast<size_t>(progress->begun * piece_bytes_);
  const size_t bytes = std::min(static_cast<size_t>(piece_bytes_), size_of(message) - begin);
  ++progress->begun;
  ++channel.in_flight;
  const auto done = [this, &channel, progress] { end_piece(channel, progress); };
  const int tag = static_cast<int>(message.tag);
  if (message.is_send) {
    requests_.send(message.peer, tag, message.sent.subspan(begin, bytes), done);
  } else {
    requests_.receive(message.peer, tag, message.received.subspan(begin, bytes), done);
  }
}

void Channels::end_piece(Channel& channel, std::list<Progress>::iterator progress) {
  --channel.in_flight;
  if (++progress->done == pieces_of(progress->message)) {
    done_.push_back(progress->message.ticket);
    channel.messages.erase(progress);
    --messages_;
  }
  begin_pieces(channel);
}

}  // namespace jackscrew
