// Rotations side by side: groups of weights in parts, of which each has its share of the active
// elements and rotates by itself. So each stage of a pipeline, whose blocks are a part, always has
// its share of the work and of the memory. The interface is Rotation's, over all groups.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "learners/rotation.h"

namespace jackscrew {

class RotationParts {
 public:
  // `sizes`: elements of each group. `parts`: the part of each, numbered from 0; none is empty. The
  // active elements are divided in proportion to the parts' elements. Throws Error(usage) where a
  // group does not fit in its part's share.
  RotationParts(const std::vector<int64_t>& sizes, const std::vector<int32_t>& parts,
                const RotationOptions& options);

  void advance();
  std::span<const int32_t> active() const { return active_; }
  int64_t window() const { return parts_.front().rotation->window(); }
  std::span<const int64_t> turns() const { return turns_; }
  void set_score(int32_t group, double score);
  int64_t windows_of_a_round(int64_t limit) const;  // of the slowest part
  double windows_of_a_turn() const;                 // of the part where they are fewest
  int64_t state_bytes() const;
  void save(std::span<uint8_t> state) const;
  void restore(std::span<const uint8_t> state);

  // The groups with the largest sum of `weights` that can be active at once.
  std::vector<int32_t> heaviest(std::span<const int64_t> weights) const;

 private:
  struct Part {
    std::vector<int32_t> groups;
    std::vector<int64_t> sizes;  // of these
    int64_t active_elements = 0;
    std::optional<Rotation> rotation;
  };
  // Brings active_ and turns_ up to date.
  void collect();

  std::vector<Part> parts_;
  std::vector<std::pair<int32_t, int32_t>> places_;  // [groups]: part, and number in it
  std::vector<int32_t> active_;
  std::vector<int64_t> turns_;  // [groups]
};

}  // namespace jackscrew
