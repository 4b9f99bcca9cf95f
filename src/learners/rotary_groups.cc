#include "learners/rotary_groups.h"

#include <algorithm>
#include <numeric>
#include <set>

namespace jackscrew {

void RotaryGroups::add(const WeightSpec& weight) {
  const RotaryOptions::GroupName name = options_.group_of(weight);
  const auto [number, is_new] = numbers_.emplace(name.name, static_cast<int32_t>(groups_.size()));
  if (is_new) groups_.push_back(RotaryGroup{name.name, name.kind, options_.part_of(weight), {}});
  (*this)[number->second].size += weight.size();
  blocks_ = std::max(blocks_, weight.layer + 1);
  elements_ += weight.size();
}

void RotaryGroups::add_slot(const WeightSpec& weight, RotarySlot& slot) {
  (*this)[numbers_.at(options_.group_of(weight).name)].slots.push_back(&slot);
}

std::vector<int32_t> RotaryGroups::numbers() const {
  std::vector<int32_t> all(groups_.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<int32_t> RotaryGroups::first_of_kind() const {
  std::vector<int32_t> first;
  std::set<std::string> kinds;
  for (const int32_t group : numbers()) {
    const RotaryGroup& g = (*this)[group];
    if (!g.slots.empty() && kinds.insert(g.kind).second) first.push_back(group);
  }
  return first;
}

std::vector<int64_t> RotaryGroups::sums_here(int64_t (RotarySlot::*of)() const) const {
  std::vector<int64_t> sums;
  for (const RotaryGroup& group : groups_) {
    int64_t& sum = sums.emplace_back(0);
    for (const RotarySlot* slot : group.slots) sum += (slot->*of)();
  }
  return sums;
}

void RotaryGroups::activate(Context& context, std::span<const int32_t> groups) const {
  for (const int32_t group : groups) {
    for (RotarySlot* slot : (*this)[group].slots) slot->activate(context);
  }
}

void RotaryGroups::retire(Context& context, int32_t group) const {
  for (RotarySlot* slot : (*this)[group].slots) {
    slot->leave(context);
    slot->flush(context);
  }
}

}  // namespace jackscrew
