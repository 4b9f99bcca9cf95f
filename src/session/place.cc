#include "session/place.h"

#include <algorithm>
#include <functional>

#include "base/checked.h"
#include "base/error.h"

namespace jackscrew {

namespace {

// Takes a stage's time to be that of its products. The last stage also has the head, so it gets
// fewer blocks. The others differ by one block at most; later ones get the extra blocks, because
// earlier ones keep more micro-batches in flight.
std::vector<int64_t> fastest_split(const ModelConfig& config, int64_t stages) {
  const int64_t blocks = config.num_hidden_layers;
  const auto sizes = [&](const StageSpec& stage) {
    int64_t size = 0;
    for (const WeightSpec& weight : linears_of(config, stage)) size += weight.size();
    return size;
  };
  const int64_t block = sizes({0, 1, false, false});
  const int64_t head = head_of(config).size();
  int64_t best_last = 1;
  int64_t best_time = 0;
  for (int64_t last = 1; last <= blocks - (stages - 1); ++last) {
    const int64_t others = ceil_div(blocks - last, stages - 1);
    const int64_t time = std::max(others * block, last * block + head);
    if (best_time > 0 && time > best_time) continue;
    best_time = time;
    best_last = last;
  }
  std::vector<int64_t> split;
  for (int64_t stage = 0; stage < stages; ++stage) {
    split.push_back((blocks - best_last) * stage / (stages - 1));
  }
  split.push_back(blocks);
  return split;
}

}  // namespace

std::string blocks_text(const std::vector<int64_t>& split, size_t stage) {
  return fmt::format("{}-{}", split[stage], split[stage + 1] - 1);
}

Layout layout_of(const Recipe& recipe, int ranks) {
  return Layout::of(ranks, narrow<int>(recipe.pipeline_stages), recipe.data_parallel);
}

std::vector<int64_t> stage_split_of(const Recipe& recipe, const ModelConfig& config,
                                    int64_t stages) {
  const int64_t blocks = config.num_hidden_layers;
  if (stages == 1) return {};
  if (stages > blocks) {
    throw Error(ErrorKind::usage,
                fmt::format("{} blocks cannot be shared out over {} stages", blocks, stages),
                fmt::format("set pipeline_stages to {} at most", blocks));
  }
  if (recipe.stage_split.empty()) return fastest_split(config, stages);
  std::vector<int64_t> split = {0};
  for (const int64_t count : recipe.stage_split) split.push_back(checked_add(split.back(), count));
  if (std::ssize(split) != stages + 1 || split.back() != blocks) {
    throw Error(ErrorKind::usage,
                fmt::format("stage_split has {} blocks in {} stages, the model has {} and the "
                            "pipeline {}",
                            split.back(), std::ssize(split) - 1, blocks, stages),
                "give the number of blocks of each stage, such as stage_split=15,15");
  }
  return split;
}

}  // namespace jackscrew
