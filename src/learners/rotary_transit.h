// Rotating weights on their way between host and device, beside the steps: those that join come
// during the last step before the rotation, those that leave go during the first one after it.
#pragma once

#include <utility>
#include <vector>

#include "learners/rotary_slot.h"

namespace jackscrew {

class RotaryTransit {
 public:
  // Bytes of the device that weights on their way may hold; 0: none goes this way.
  void set_limit(int64_t bytes) { limit_ = bytes; }
  bool is_used() const { return limit_ > 0; }

  // Before the last step: takes memory for a slot that will join, if there is room.
  void expect(RotarySlot& slot);
  // What is expected will not come, or not so.
  void forget();

  // The rotation, between Ops::finish() before it and after. Those that were expected are there.
  void arrive();
  // Whether a slot that leaves is flushed this way.
  bool takes_away(int32_t group, RotarySlot& slot);

  bool has_work() const { return !joining_.empty() || !leaving_.empty(); }
  // Beside a step: brings and takes away. Calls changed(group, sum of squared changes) for every
  // slot that has left.
  template <class Changed>
  void work(Context& context, const Changed& changed) {
    for (const auto& [group, slot] : std::exchange(leaving_, {})) {
      changed(group, slot->flush(context, &Ops::copy_beside));
    }
    leaving_bytes_ = 0;
    for (RotarySlot* slot : joining_) slot->fetch(context, &Ops::copy_beside);
  }

 private:
  // Whether there is room for it too.
  bool holds(int64_t& held, const RotarySlot& slot) const;

  int64_t limit_ = 0;
  std::vector<RotarySlot*> joining_;
  int64_t joining_bytes_ = 0;
  std::vector<std::pair<int32_t, RotarySlot*>> leaving_;
  int64_t leaving_bytes_ = 0;
};

}  // namespace jackscrew
