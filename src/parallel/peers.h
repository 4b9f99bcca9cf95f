// The communication of one rank with the others in a step. Every addition is made here, in an order
// that does not depend on the number of ranks; transports only move bytes.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "kernels/ops.h"
#include "parallel/layout.h"
#include "parallel/transport.h"

namespace jackscrew {

// Bytes that a rank sends to others.
struct Traffic {
  int64_t stream = 0;    // the residual stream and its gradient
  int64_t gradient = 0;  // sums of gradients
  int64_t all() const { return stream + gradient; }
};

class Peers {
 public:
  // `transport` must outlive this. Null: nothing is sent; for rehearsals, and runs of one rank.
  Peers(Transport* transport, const Layout& layout, int rank)
      : transport_(transport), layout_(layout), rank_(rank) {}
  // Allocates the buckets for sums of gradients with this many elements in all. The host must be
  // able to read `memory`.
  void reserve(Memory& memory, int64_t gradient_elements);

  int stage() const { return layout_.stage_of(rank_); }
  int replica() const { return layout_.replica_of(rank_); }
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() + 1 == layout_.stages; }

  // The residual stream, f32 [tokens, hidden], goes to the next stage, its gradient to the one
  // before. `staged` is memory of the host that they pass through, f32 with at least as many rows;
  // without elements, they are sent and received as they lie, which the host must be able to read.
  // What was sent, and `staged`, must stay unchanged until wait().
  Ticket send_forward(Ops& ops, const Tensor& stream, const Tensor& staged) {
    return send(ops, rank_ + 1, stream, staged);
  }
  Ticket send_backward(Ops& ops, const Tensor& gradient, const Tensor& staged) {
    return send(ops, rank_ - 1, gradient, staged);
  }
  void receive_forward(Ops& ops, const Tensor& stream, const Tensor& staged) {
    receive(ops, rank_ - 1, stream, staged);
  }
  void receive_backward(Ops& ops, const Tensor& gradient, const Tensor& staged) {
    receive(ops, rank_ + 1, gradient, staged);
  }
  void wait(Ticket& ticket);
  // Sends a tensor from the last stage to the first; other stages do nothing. `staged` as above.
  void return_to_first(Ops& ops, const Tensor& tensor, const Tensor& staged);

  // Replaces f32 tensors by their sums over all replicas of this stage, added in the tree of
  // lanes.h.
  void sum_over_replicas(Ops& ops, std::span<const Tensor> tensors);
  // Replaces f32 tensors by their sums over the first and the last stage of a replica, which both
  // hold a tied embedding.
  void sum_over_ends(Ops& ops, std::span<const Tensor> tensors);

  // A sum that passes through the stages of a replica in order: `add` is given the sum of the
  // stages before and returns it with this stage's share added. The call returns the sum over all
  // stages.
  double sum_over_stages(const std::function<double(double)>& add);
  // Returns the losses of all lanes on every rank. `own` are those of this replica's lanes, which
  // its last stage knows; other stages pass none.
  std::vector<double> losses_of_lanes(std::span<const double> own);

  // What this rank has sent so far or, without a transport, at most what it or another replica of
  // its stage would have sent.
  const Traffic& sent() const { return sent_; }
  // Seconds that this rank has waited for others so far.
  double seconds_waited() const { return seconds_waited_; }

 private:
  Ticket send(Ops& ops, int to, const Tensor& tensor, const Tensor& staged);
  void receive(Ops& ops, int from, const Tensor& tensor, const Tensor& staged);
  void wait_for(std::span<const Ticket> tickets);
  void sum_over(Ops& ops, std::span<const int> ranks, std::span<const Tensor> tensors);
  void count_bucket(std::span<const int> ranks, int64_t count);
  void sum_bucket(Ops& ops, std::span<const int> ranks, int64_t count);
  void send_value(int to, double value);
  double receive_value(int from);

  Transport* transport_;
  Layout layout_;
  int rank_;
  int64_t bucket_ = 0;    // elements that are exchanged at a time
  OwnedTensor own_;       // f32 [bucket]
  OwnedTensor received_;  // f32 [ranks - 1 times a part]: this rank's part, from each of the others
  Traffic sent_;
  double seconds_waited_ = 0;
};

}  // namespace jackscrew
