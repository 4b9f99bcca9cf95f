#include "learners/rotary_transit.h"

namespace jackscrew {

bool RotaryTransit::reserve(int64_t& held, const RotarySlot& slot) const {
  const int64_t bytes = slot.moving_bytes();
  if (held + bytes > limit_) return false;
  held += bytes;
  return true;
}

void RotaryTransit::prepare(RotarySlot& slot) {
  if (!reserve(joining_bytes_, slot)) return;
  slot.prepare();
  joining_.push_back(&slot);
}

void RotaryTransit::forget_joining() {
  for (RotarySlot* slot : joining_) slot->forget();
  arrive();
}

void RotaryTransit::arrive() {
  joining_.clear();
  joining_bytes_ = 0;
}

bool RotaryTransit::try_enqueue_leaving(int32_t group, RotarySlot& slot) {
  if (!reserve(leaving_bytes_, slot)) return false;
  leaving_.emplace_back(group, &slot);
  return true;
}

}  // namespace jackscrew
