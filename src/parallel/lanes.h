// The sum of a step's lanes: each accumulates by itself what the others do, and the sums are added
// in a tree that depends on their number alone. tree(n) = tree(p) + tree(n - p), where p is the
// largest power of two below n; so lanes that are spread over equal powers of two of ranks, each of
// which sums its own, come to the same bits.
#pragma once

#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "optim/state.h"

namespace jackscrew {

// Adds from to to, both f32, of one size and contiguous.
void add_tensor(Ops& ops, const Tensor& from, const Tensor& to);

class LaneSums {
 public:
  // From now on sums these gradients and windows, with what they bring for sums that wait.
  void watch(std::vector<StateRef> accumulated) { accumulated_ = std::move(accumulated); }
  // All of them, in order.
  std::vector<Tensor> tensors() const;

  // Puts aside what windows hold of earlier steps: with one lane, nothing need be.
  void begin_step(Ops& ops);
  // A lane has ended: its sum waits, and the next begins at zero; after the last, all are added.
  void end_lane(Ops& ops, bool last);
  // After the sum over all replicas: windows add what they held before.
  void end_step(Ops& ops);

 private:
  std::vector<StateRef> accumulated_;
  int64_t ended_ = 0;   // lanes of this step
  size_t waiting_ = 0;  // sums
};

}  // namespace jackscrew
