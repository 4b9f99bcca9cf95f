#include "parallel/peers.h"

#include <algorithm>
#include <bit>

#include "base/checked.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/parallel.h"

namespace jackscrew {

namespace {

// Gradients are exchanged 32 MiB at a time: large enough that bandwidth rather than latency decides
// the time of a message on any network, small beside what a rank holds.
constexpr int64_t kBucketElements = (int64_t{32} << 20) / 4;

// The first element of part `index` when `count` elements are cut into `parts`.
int64_t part_begin(int64_t count, int64_t parts, int64_t index) {
  return count * index / parts;
}

// Where a tensor is sent from, or received to.
Tensor on_host(const Tensor& tensor, const Tensor& staged) {
  return staged.size() == 0 ? tensor : staged.rows(0, tensor.rows());
}

// Adds the arrays of `count` elements in the tree of lanes.h, element by element. The sum is left
// in the first; others may hold partial sums.
void add_in_tree(std::span<float* const> terms, int64_t count) {
  const size_t n = terms.size();
  if (n < 2) return;
  const size_t left = std::bit_floor(n - 1);
  add_in_tree(terms.first(left), count);
  add_in_tree(terms.subspan(left), count);
  float* to = terms[0];
  const float* from = terms[left];
  for (int64_t i = 0; i < count; ++i) to[i] += from[i];
}

}  // namespace

void Peers::reserve(Memory& memory, int64_t gradient_elements) {
  if (gradient_elements == 0) return;
  bucket_ = std::min(kBucketElements, gradient_elements);
  own_ = OwnedTensor(memory, Purpose::communication, DType::f32, {bucket_});
  // Parts of a bucket differ by one element at most. The ends of a pipeline are two ranks: half a
  // bucket is enough for them, and no less than that is what three replicas or more take.
  const int64_t ranks = std::max(2, layout_.replicas);
  received_ = OwnedTensor(memory, Purpose::communication, DType::f32,
                          {(ranks - 1) * ceil_div(bucket_, ranks)});
}

void Peers::wait_for(std::span<const Ticket> tickets) {
  const Stopwatch watch;
  transport_->wait(tickets);
  seconds_waited_ += watch.seconds();
}

void Peers::wait(Ticket& ticket) {
  if (ticket.id < 0) return;
  wait_for({&ticket, 1});
  ticket = {};
}

Ticket Peers::send(Ops& ops, int to, const Tensor& tensor, const Tensor& staged) {
  sent_.stream += tensor.bytes();
  if (transport_ == nullptr) return {};
  const Tensor from = on_host(tensor, staged);
  if (from.raw() == tensor.raw()) {
    ops.finish();
  } else {
    ops.copy(from, tensor);
  }
  return transport_->send(to, Tag::stream, bytes_of(from));
}

void Peers::receive(Ops& ops, int from, const Tensor& tensor, const Tensor& staged) {
  if (transport_ == nullptr) return;
  const Tensor to = on_host(tensor, staged);
  const Ticket ticket = transport_->receive(from, Tag::stream, bytes_of(to));
  wait_for({&ticket, 1});
  if (to.raw() != tensor.raw()) ops.copy(tensor, to);
}

void Peers::return_to_first(Ops& ops, const Tensor& tensor, const Tensor& staged) {
  if (layout_.stages == 1) return;
  if (is_last()) {
    Ticket sent = send(ops, layout_.rank_of(replica(), 0), tensor, staged);
    wait(sent);
  } else if (is_first()) {
    receive(ops, layout_.rank_of(replica(), layout_.stages - 1), tensor, staged);
  }
}

void Peers::sum_over_replicas(Ops& ops, std::span<const Tensor> tensors) {
  if (layout_.replicas == 1) return;
  std::vector<int> ranks;
  for (int replica = 0; replica < layout_.replicas; ++replica) {
    ranks.push_back(layout_.rank_of(replica, stage()));
  }
  sum_over(ops, ranks, tensors);
}

void Peers::sum_over_ends(Ops& ops, std::span<const Tensor> tensors) {
  const int ranks[] = {layout_.rank_of(replica(), 0),
                       layout_.rank_of(replica(), layout_.stages - 1)};
  sum_over(ops, ranks, tensors);
}

// Packs the tensors one after another into buckets, on every rank in the same way.
void Peers::sum_over(Ops& ops, std::span<const int> ranks, std::span<const Tensor> tensors) {
  struct Piece {
    Tensor tensor;  // flat
    int64_t at;     // offset in the bucket
  };
  std::vector<Piece> pieces;
  int64_t filled = 0;
  const auto in_bucket = [&](const Piece& piece) {
    return own_.view().columns(piece.at, piece.at + piece.tensor.size());
  };
  const auto flush = [&] {
    count_bucket(ranks, filled);
    if (transport_ != nullptr) {
      for (const Piece& piece : pieces) ops.copy(in_bucket(piece), piece.tensor);
      sum_bucket(ops, ranks, filled);
      for (const Piece& piece : pieces) ops.copy(piece.tensor, in_bucket(piece));
    }
    pieces.clear();
    filled = 0;
  };
  for (const Tensor& tensor : tensors) {
    const Tensor flat = tensor.reshaped({tensor.size()});
    for (int64_t begin = 0; begin < flat.size();) {
      const int64_t end = std::min(flat.size(), begin + bucket_ - filled);
      pieces.push_back({flat.columns(begin, end), filled});
      filled += end - begin;
      begin = end;
      if (filled == bucket_) flush();
    }
  }
  if (filled > 0) flush();
}

void Peers::count_bucket(std::span<const int> ranks, int64_t count) {
  const auto parts = std::ssize(ranks);
  const auto me = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  // A rehearsal stands for all replicas of its stage, of which some have the largest part.
  const int64_t mine = transport_ == nullptr
                           ? ceil_div(count, parts)
                           : part_begin(count, parts, me + 1) - part_begin(count, parts, me);
  sent_.gradient += (count - mine + (parts - 1) * mine) * dtype_size(DType::f32);
}

// A reduce-scatter, then an all-gather: each rank receives one part of the bucket from all others,
// adds it up, and sends the sum to all.
void Peers::sum_bucket(Ops& ops, std::span<const int> ranks, int64_t count) {
  const auto parts = std::ssize(ranks);
  const auto me = std::find(ranks.begin(), ranks.end(), rank_) - ranks.begin();
  const auto part_of = [&](int64_t index) {
    return own_.view().columns(part_begin(count, parts, index),
                               part_begin(count, parts, index + 1));
  };
  const Tensor mine = part_of(me);
  std::vector<Ticket> tickets;
  std::vector<float*> terms;
  int64_t begin = 0;  // in received_
  for (int64_t i = 0; i < parts; ++i) {
    if (i == me) {
      terms.push_back(mine.data<float>());
      continue;
    }
    const int rank = ranks[static_cast<size_t>(i)];
    const Tensor theirs = received_.view().columns(begin, begin + mine.size());
    begin += mine.size();
    terms.push_back(theirs.data<float>());
    tickets.push_back(transport_->receive(rank, Tag::gradient, bytes_of(theirs)));
    tickets.push_back(transport_->send(rank, Tag::gradient, bytes_of(part_of(i))));
  }
  wait_for(tickets);
  tickets.clear();
  constexpr int64_t kBlock = 16384;  // elements of each term that a thread adds at a time
  parallel_for(ops.threads(), ceil_div(mine.size(), kBlock), [&](int64_t block, int) {
    std::vector<float*> at;
    for (float* const term : terms) at.push_back(term + block * kBlock);
    add_in_tree(at, std::min(kBlock, mine.size() - block * kBlock));
  });
  if (terms[0] != mine.data<float>()) {
    std::copy_n(terms[0], static_cast<size_t>(mine.size()), mine.data<float>());
  }
  for (int64_t i = 0; i < parts; ++i) {
    if (i == me) continue;
    const int rank = ranks[static_cast<size_t>(i)];
    tickets.push_back(transport_->receive(rank, Tag::gradient, bytes_of(part_of(i))));
    tickets.push_back(transport_->send(rank, Tag::gradient, bytes_of(mine)));
  }
  wait_for(tickets);
}

void Peers::send_value(int to, double value) {
  send_now(*transport_, to, Tag::scalar, {reinterpret_cast<const uint8_t*>(&value), sizeof value});
}

double Peers::receive_value(int from) {
  double value = 0;
  const Stopwatch watch;
  receive_now(*transport_, from, Tag::scalar, {reinterpret_cast<uint8_t*>(&value), sizeof value});
  seconds_waited_ += watch.seconds();
  return value;
}

double Peers::sum_over_stages(const std::function<double(double)>& add) {
  if (transport_ == nullptr || layout_.stages == 1) return add(0.0);
  const double before = is_first() ? 0.0 : receive_value(rank_ - 1);
  const double sum = add(before);
  if (!is_last()) {
    send_value(rank_ + 1, sum);
    return receive_value(layout_.rank_of(replica(), layout_.stages - 1));
  }
  for (int to = 0; to + 1 < layout_.stages; ++to) send_value(layout_.rank_of(replica(), to), sum);
  return sum;
}

std::vector<double> Peers::losses_of_lanes(std::span<const double> own) {
  std::vector<double> all(static_cast<size_t>(layout_.lanes));
  const auto lanes = static_cast<size_t>(layout_.lanes_of_replica());
  std::vector<Ticket> tickets;
  for (int replica = 0; replica < layout_.replicas; ++replica) {
    const int from = layout_.rank_of(replica, layout_.stages - 1);
    const std::span<double> theirs =
        std::span(all).subspan(static_cast<size_t>(replica) * lanes, lanes);
    if (from == rank_ || transport_ == nullptr) {
      std::copy(own.begin(), own.end(), theirs.begin());
      continue;
    }
    tickets.push_back(transport_->receive(
        from, Tag::scalar, {reinterpret_cast<uint8_t*>(theirs.data()), theirs.size_bytes()}));
  }
  for (int to = 0; is_last() && transport_ != nullptr && to < layout_.ranks(); ++to) {
    if (to == rank_) continue;
    tickets.push_back(transport_->send(
        to, Tag::scalar, {reinterpret_cast<const uint8_t*>(own.data()), own.size_bytes()}));
  }
  if (transport_ != nullptr) wait_for(tickets);
  return all;
}

}  // namespace jackscrew
