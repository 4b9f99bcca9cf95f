// Copies of rotating weights between host and device that run beside the steps: joining weights are
// fetched during the last step before a rotation, leaving ones are flushed during the first step
// after it.
#pragma once

#include <utility>
#include <vector>

#include "learners/rotary_slot.h"

namespace jackscrew {

class RotaryTransit {
 public:
  // Device bytes that weights in transit may hold in each direction; 0: none is copied this way.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  int64_t limit() const { return limit_; }
  bool is_used() const { return limit_ > 0; }

  // Before the last step: allocates memory for a slot that will join, if there is room.
  void prepare(RotarySlot& slot);
  // Drops all prepared slots and frees their memory.
  void forget_joining();

  // At the rotation, between the Ops::finish() before it and the one after: the prepared slots have
  // been fetched.
  void arrive();
  // At the rotation: whether a slot that leaves will be flushed by work().
  bool try_enqueue_leaving(int32_t group, RotarySlot& slot);

  bool has_work() const { return !joining_.empty() || !leaving_.empty(); }
  // Beside a step: flushes leaving slots and fetches joining ones. Calls changed(group, sum of
  // squared changes) for every slot flushed.
  template <class Changed>
  void work(Context& context, const Changed& changed) {
    const auto leaving = std::exchange(leaving_, {});
    leaving_bytes_ = 0;
    for (const auto& [group, slot] : leaving) {
      changed(group, slot->save(context, HostCopy::beside_steps));
    }
    for (RotarySlot* slot : joining_) slot->fetch(context, HostCopy::beside_steps);
    // Last, since it waits for the step.
    for (const auto& [group, slot] : leaving) slot->release(context);
  }

 private:
  // Whether the slot fits into limit_ too; if so, adds its bytes to `held`.
  bool reserve(int64_t& held, const RotarySlot& slot) const;

  int64_t limit_ = 0;
  std::vector<RotarySlot*> joining_;
  int64_t joining_bytes_ = 0;
  std::vector<std::pair<int32_t, RotarySlot*>> leaving_;
  int64_t leaving_bytes_ = 0;
};

}  // namespace jackscrew
