// Rotation: which groups of weights are trained when. It knows sizes only; the rotary learner moves
// the weights. The sequence of windows is a pure function of the options, the sizes and, in the
// order `importance`, of the scores it is given.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/choices.h"

namespace jackscrew {

enum class RotationOrder {
  permutation,  // every group once a round, each round in a new order
  random,       // drawn anew each time: nothing keeps a group from waiting forever
  ascending,    // from the first group to the last, over and over
  descending,
  importance  // a round of permutation, then drawn in proportion to their scores
};

// As rotation_order has them.
inline constexpr Choices kRotationOrders("permutation random ascending descending importance",
                                         std::array{RotationOrder::permutation,
                                                    RotationOrder::random, RotationOrder::ascending,
                                                    RotationOrder::descending,
                                                    RotationOrder::importance});

struct RotationOptions {
  RotationOrder order = RotationOrder::permutation;
  int64_t active_elements = 0;  // most elements trained at once
  double churn = 1.0;           // share of the active groups that is replaced at a rotation
  uint64_t seed = 0;
  uint32_t part = 0;  // of RotationParts: each draws numbers of its own
};

// The end of hints where a group is too large.
inline constexpr const char* kSmallestGroups =
    "rotation_groups=matrix needs the least, with static=train less than with static=rotate";

class Rotation {
 public:
  // `sizes`: elements of each group. Throws Error(usage) when one of them does not fit in
  // active_elements. Begins before the first window: nothing is active.
  Rotation(std::vector<int64_t> sizes, const RotationOptions& options);

  // Goes on to the next window: the oldest active groups leave, and groups join in their order
  // while they fit. A group that does not fit waits for the next window; in the strict orders
  // (ascending, descending) those after it wait too.
  void advance();
  // The groups of this window, the oldest first.
  std::span<const int32_t> active() const { return active_; }
  int64_t window() const { return window_; }  // 0 before the first
  // How many windows each group has been active in.
  std::span<const int64_t> turns() const { return turns_; }
  // For the order `importance`: groups with larger scores are drawn more often. Positive.
  void set_score(int32_t group, double score) { scores_[static_cast<size_t>(group)] = score; }

  // Windows from now until every group has had another turn; at most `limit`.
  int64_t windows_of_a_round(int64_t limit) const;

  // Windows that a group is active in before it leaves, on average.
  double windows_of_a_turn() const;

  // Everything that later windows depend on, as a fixed number of bytes, for checkpoints.
  int64_t state_bytes() const;
  void save(std::span<uint8_t> state) const;
  // Throws Error(model) when the bytes are not those of a rotation of these groups, or when more
  // elements are active there than may be here.
  void restore(std::span<const uint8_t> state);

 private:
  void refill();
  int64_t leaving() const;  // how many groups leave at the next window
  bool is_active(int32_t group) const;
  uint32_t draw(uint32_t below);
  double draw_uniform();

  std::vector<int64_t> sizes_;
  RotationOptions options_;
  int64_t window_ = 0;
  int64_t draws_ = 0;  // random numbers used so far
  bool seen_all_ = false;
  std::vector<int32_t> active_;  // first in, first out
  std::vector<int32_t> queue_;   // groups still to come in this round, the next first
  std::vector<int64_t> turns_;   // [groups]
  std::vector<double> scores_;   // [groups]
};

}  // namespace jackscrew
