// The sum of a step's lanes. Each lane accumulates gradients of its own, and these are added in a
// tree that depends on the number of lanes alone: tree(n) = tree(p) + tree(n - p), where p is the
// largest power of two below n. So the bits do not change when every rank sums the same power of
// two of lanes and the sums of the ranks are then added in such a tree.
#pragma once

#include <bit>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/ops.h"
#include "tensor/state.h"

namespace jackscrew {

// The most sums that wait at once where one place works through so many lanes: they are sums of 1,
// 2, 4 ... lanes, no two of the same number.
inline int64_t waiting_lane_sums(int64_t lanes) {
  return lanes <= 1 ? 0 : static_cast<int64_t>(std::bit_width(static_cast<uint64_t>(lanes))) - 1;
}

// Where one place works through several lanes, the sums of those that have ended wait beside the
// gradient of the one that runs.
class LaneSums {
 public:
  // From now on sums these gradients and windows, using StateRef::lane_sums for sums that wait.
  void watch(std::vector<StateRef> accumulated) { accumulated_ = std::move(accumulated); }
  // All watched tensors, in order.
  std::vector<Tensor> tensors() const;

  // Puts aside what windows hold from earlier steps. With one lane there is no need to.
  void begin_step(Ops& ops);
  // Call when a lane has ended: its sum waits, and the next lane begins at zero. After the last
  // lane all sums are added.
  void end_lane(Ops& ops, bool last);
  // Call after the sum over all replicas: adds to windows what they held before the step.
  void end_step(Ops& ops);

 private:
  std::vector<StateRef> accumulated_;
  int64_t ended_ = 0;   // lanes of this step that have ended
  size_t waiting_ = 0;  // sums that wait
};

}  // namespace jackscrew
