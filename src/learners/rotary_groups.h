// Groups of weights that take their turns together (rotary training), by their numbers: which
// weight is in which, and the slots of those that are in this stage. Who is active when is the
// rotation's to say.
#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include "learners/rotary_options.h"

namespace jackscrew {

struct RotaryGroup {
  std::string name;
  std::string kind;  // matching groups of all layers share it
  int32_t part = 0;  // of rotation_parts
  std::vector<RotarySlot*> slots;
  int64_t size = 0;  // elements
  // It was restored while it was active: its masters have the values from the beginning of the run
  // instead of those with which it joined.
  bool joined_unseen = false;
};

class RotaryGroups {
 public:
  // The options must outlive the groups.
  explicit RotaryGroups(const RotaryOptions& options) : options_(options) {}

  // Call for every weight of the model that rotates, in the model's order, before there are slots.
  void add(const WeightSpec& weight);
  // Adds the slot of such a weight, which remains its owner's.
  void add_slot(const WeightSpec& weight, RotarySlot& slot);

  int64_t size() const { return std::ssize(groups_); }
  int64_t elements() const { return elements_; }  // of all groups
  int64_t blocks() const { return blocks_; }      // of the model
  std::span<const RotaryGroup> all() const { return groups_; }
  std::vector<int32_t> numbers() const;  // of all groups
  const RotaryGroup& operator[](int32_t group) const { return groups_[static_cast<size_t>(group)]; }
  RotaryGroup& operator[](int32_t group) { return groups_[static_cast<size_t>(group)]; }

  // The first group of each kind that has weights here.
  std::vector<int32_t> first_of_kind() const;
  // What the slots here have of something, summed in each group.
  std::vector<int64_t> sums_here(int64_t (RotarySlot::*of)() const) const;

  void activate(Context& context, std::span<const int32_t> groups) const;
  // Active -> waiting, outside of a rotation.
  void retire(Context& context, int32_t group) const;

 private:
  const RotaryOptions& options_;
  std::vector<RotaryGroup> groups_;
  std::map<std::string, int32_t> numbers_;  // by name
  int64_t blocks_ = 0;
  int64_t elements_ = 0;
};

}  // namespace jackscrew
