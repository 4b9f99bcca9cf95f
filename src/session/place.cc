#include "session/place.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <span>

#include "base/checked.h"
#include "base/error.h"
#include "base/text.h"

namespace jackscrew {

namespace {

constexpr const char* kRankMemory = "rank_device_memory";

// A stage's time is taken to be that of its products, in proportion to their weights.
struct Times {
  int64_t block = 0;
  int64_t head = 0;  // of the last stage
};
Times times_of(const ModelConfig& config) {
  Times out;
  for (const WeightSpec& weight : linears_of(config, {0, 1, false, false})) {
    out.block += weight.size();
  }
  out.head = head_of(config).size();
  return out;
}

// The first block of each stage, then the number of blocks.
std::vector<int64_t> split_of(std::span<const int64_t> counts) {
  std::vector<int64_t> split = {0};
  for (const int64_t count : counts) split.push_back(checked_add(split.back(), count));
  return split;
}

}  // namespace

std::string blocks_text(const std::vector<int64_t>& split, size_t stage) {
  const int64_t first = split[stage];
  const int64_t last = split[stage + 1] - 1;
  return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
}

void check_lanes(const Recipe& recipe, int64_t lanes) {
  if (!recipe.fused_update || lanes == 1) return;
  throw Error(ErrorKind::usage,
              fmt::format("with update=fused no gradient is left that {} lanes (data_parallel) "
                          "could add to",
                          lanes),
              fmt::format("set update=after{}, or data_parallel=1 and pipeline_stages to the "
                          "number of ranks",
                          recipe.clip_each_weight ? " max_grad_norm_of=model" : ""));
}

Layout layout_of(const Recipe& recipe, int ranks) {
  const auto require_each = [&](const char* name, size_t count) {
    if (count == 0 || static_cast<int>(count) == ranks) return;
    throw Error(
        ErrorKind::usage,
        fmt::format("{} has {} for {}", name, counted(narrow<int>(count), "entry", "entries"),
                    counted(ranks, "rank")),
        "give one for each rank, or leave it out");
  };
  require_each("rank_devices", recipe.rank_devices.size());
  require_each(kRankMemory, recipe.rank_device_memory.size());
  const Layout layout =
      Layout::of(ranks, narrow<int>(recipe.pipeline_stages), recipe.data_parallel);
  check_lanes(recipe, layout.lanes);
  return layout;
}

Recipe of_rank(const Recipe& recipe, int rank) {
  Recipe own = recipe;
  const auto at = static_cast<size_t>(rank);
  // The text of the options as well, from which other settings may be resolved anew.
  if (!own.rank_devices.empty()) {
    own.device = own.rank_devices.at(at);
    own.options.set("device", own.device, "rank_devices");
  }
  if (!own.rank_device_memory.empty()) {
    own.device_memory = own.rank_device_memory.at(at);
    own.options.set("device_memory", fmt::format("{}B", *own.device_memory), kRankMemory);
  }
  return own;
}

std::string budget_option(const Recipe& recipe) {
  return recipe.options.origin("device_memory") == kRankMemory ? kRankMemory : "device_memory";
}

std::vector<int64_t> fastest_blocks(const ModelConfig& config, const std::vector<int64_t>& most) {
  const int64_t blocks = config.num_hidden_layers;
  if (std::ranges::min(most) < 1 || std::ssize(most) > blocks) return {};
  const auto [block, head] = times_of(config);
  std::vector<int64_t> counts(most.size(), 1);
  // Each block goes where it makes the least slow stage, of equal ones to the last: earlier stages
  // keep more micro-batches in flight.
  for (int64_t given = std::ssize(most); given < blocks; ++given) {
    std::optional<size_t> best;
    int64_t best_time = 0;
    for (size_t stage = 0; stage < most.size(); ++stage) {
      if (counts[stage] == most[stage]) continue;
      const int64_t time = (counts[stage] + 1) * block + (stage + 1 == most.size() ? head : 0);
      if (best && time > best_time) continue;
      best = stage;
      best_time = time;
    }
    if (!best) return {};
    ++counts[*best];
  }
  return counts;
}

std::vector<int64_t> stage_split_of(const Recipe& recipe, const ModelConfig& config,
                                    int64_t stages) {
  const int64_t blocks = config.num_hidden_layers;
  if (stages == 1 && recipe.stage_split.empty()) return {};
  if (stages > blocks) {
    throw Error(
        ErrorKind::usage,
        fmt::format("{} cannot be shared out over {} stages", counted(blocks, "block"), stages),
        fmt::format("set pipeline_stages to {} at most", blocks));
  }
  const auto fastest = [&] {
    return fastest_blocks(config, std::vector(static_cast<size_t>(stages), blocks));
  };
  if (recipe.stage_split.empty()) return split_of(fastest());
  const std::vector<int64_t> split = split_of(recipe.stage_split);
  if (std::ssize(split) != stages + 1 || split.back() != blocks) {
    throw Error(ErrorKind::usage,
                fmt::format("stage_split has {} in {}, the model has {} and the pipeline {}",
                            counted(split.back(), "block"), counted(std::ssize(split) - 1, "stage"),
                            blocks, stages),
                fmt::format("give the number of blocks of each stage, such as stage_split={}",
                            fmt::join(fastest(), ",")));
  }
  if (stages == 1) return {};
  return split;
}

}  // namespace jackscrew
