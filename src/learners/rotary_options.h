// The options of rotary training, and what can be derived from them alone.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "learners/learner.h"
#include "learners/rotary_slot.h"
#include "learners/rotation.h"

namespace jackscrew {

// How many of the weights that rotate are active at once, at most.
struct ActiveParams {
  std::string text;  // as given
  double value = 0.0;
  bool is_percentage = false;  // of those weights; else a number of them
};

struct RotaryOptions {
  // Most steps from one rotation to the next that `auto` chooses: a run that has time for it gains
  // from longer windows.
  static constexpr int64_t kLongestWindow = 50;

  // Throws Error(usage) for options that contradict each other.
  explicit RotaryOptions(const OptionSet& options);

  // Whether a linear layer of a block rotates.
  bool rotates(std::string_view module) const;
  // The group that a weight rotates with, and its kind, which matching groups of other layers
  // share.
  struct GroupName {
    std::string name;  // "layers.3.q_proj"
    std::string kind;  // "q_proj"
  };
  GroupName group_of(const WeightSpec& weight) const;
  // "a matrix", "a block" ...: what groups are made of.
  const char* groups_text() const;

  // Whether weights lose bits in their storage: in fewer than 16, which their file need not have.
  bool rounds(const Format& format, int64_t cols) const {
    return storage != "keep" && format.row_bytes(cols) < cols * dtype_size(DType::bf16);
  }

  // The part of rotation_parts that a weight's group belongs to.
  int32_t part_of(const WeightSpec& weight) const;
  // Throws Error(usage) unless the parts have so many blocks in all.
  void check_parts(int64_t blocks) const;

  // How many of `total` elements that rotate active_params makes active at once. Throws
  // Error(usage) where it is less than 1 or more than `total`.
  int64_t active_elements(int64_t total) const;
  // Steps from one rotation to the next with steps_per_rotation=auto: as many as let every group
  // have two turns in `total_steps`, within limits. A round takes `windows_of_a_round` windows, a
  // group's turn `windows_of_a_turn`.
  static int64_t automatic_steps(int64_t total_steps, int64_t windows_of_a_round,
                                 double windows_of_a_turn);
  // The learning rate of groups, where `share` of all elements is active at once.
  double group_rate(double share) const;
  // A rate as a multiple of the run's.
  double scale_of(double rate) const { return learning_rate > 0 ? rate / learning_rate : 1.0; }
  // Throws Error(usage) where weight decay at the rate of groups leaves nothing of a weight.
  void check_group_decay(double share) const;

  ActiveParams active_params;
  RotationOrder order;
  std::vector<int64_t> parts;                 // blocks of each; empty: one part
  std::optional<int64_t> steps_per_rotation;  // nullopt: auto
  double churn;
  std::string storage;
  std::string static_weights;                 // embedding, norms and head: train, rotate or freeze
  double learning_rate;                       // of the run
  std::optional<double> group_learning_rate;  // nullopt: auto
  double static_learning_rate;
  bool masters_in_files;
  bool overlap;
  RotarySlot::Settings slots;
  // The settings, "name=value", that mean something only where groups rotate, or where weights have
  // masters.
  std::vector<std::string> of_rotations, of_masters;

 private:
  double weight_decay_;
  bool by_attention_ = false, by_mlp_ = false, by_block_ = false, by_matrix_ = false;
};

}  // namespace jackscrew
