// Which part of a run a session does: its stage of the model and its lanes of a step.
#pragma once

#include <string>
#include <vector>

#include "model/weights.h"
#include "parallel/layout.h"
#include "recipe/recipe.h"

namespace jackscrew {

struct Place {
  Layout layout;
  int rank = 0;
  // [stages + 1]: the first block of each stage, then the number of blocks. Empty: one stage.
  std::vector<int64_t> stage_split = {};

  int stage() const { return layout.stage_of(rank); }
  int replica() const { return layout.replica_of(rank); }
  bool is_first() const { return stage() == 0; }
  bool is_last() const { return stage() + 1 == layout.stages; }
  // One rank does the whole step, in one lane.
  bool is_whole() const { return layout.ranks() == 1 && layout.lanes == 1; }

  StageSpec spec(const ModelConfig& config) const {
    if (layout.stages == 1) return StageSpec::whole(config);
    const auto stage = static_cast<size_t>(this->stage());
    return {stage_split[stage], stage_split[stage + 1], is_first(), is_last()};
  }
  // The first micro-batch of a lane, out of `micro_batches` of a step; lanes are numbered over all
  // replicas. For the lane after the last: `micro_batches`.
  int64_t lane_begin(int64_t lane, int64_t micro_batches) const {
    return micro_batches * lane / layout.lanes;
  }
  int64_t first_lane() const { return replica() * layout.lanes_of_replica(); }
  int64_t end_lane() const { return first_lane() + layout.lanes_of_replica(); }
};

// The blocks of a stage as text: "0-14", or "15". `split` is as Place::stage_split, and not empty.
std::string blocks_text(const std::vector<int64_t>& split, size_t stage);

// Throws Error(usage) where a recipe's gradients cannot be summed over so many lanes.
void check_lanes(const Recipe& recipe, int64_t lanes);
// How `ranks` ranks share the work of a recipe. Throws Error(usage) where they cannot, saying how
// many ranks could, where it has another number of rank_devices or rank_device_memory, and as
// check_lanes().
Layout layout_of(const Recipe& recipe, int ranks);
// The recipe with `device` and `device_memory` as they are for one rank.
Recipe of_rank(const Recipe& recipe, int rank);
// The option that the recipe's device_memory comes from: after of_rank() it may be that of all
// ranks.
std::string budget_option(const Recipe& recipe);
// The split of blocks into stages, as Place::stage_split: the recipe's or, where it has none, the
// one whose slowest stage is fastest. Throws Error(usage) where the blocks do not add up to the
// model's, or are fewer than the stages.
std::vector<int64_t> stage_split_of(const Recipe& recipe, const ModelConfig& config,
                                    int64_t stages);

// The number of blocks of each stage, at most `most` [stages], such that the slowest stage is as
// fast as it can be; empty where the model has more blocks than that, or fewer than stages.
std::vector<int64_t> fastest_blocks(const ModelConfig& config, const std::vector<int64_t>& most);

}  // namespace jackscrew
