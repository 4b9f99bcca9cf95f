#include "session/rank_fit.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>

#include "base/checked.h"
#include "base/error.h"
#include "parallel/schedule.h"
#include "session/knobs.h"

namespace jackscrew {

namespace {

// Ways to arrange the ranks, by which a step keeps its micro-batches. The cost is that of waiting:
// stages wait for each other, replicas do not.
std::vector<Position> arrangements(const Recipe& recipe, int ranks) {
  // As many as the recipe has, or as its arrangement of the ranks makes; check_lanes() allows one.
  int64_t lanes = recipe.fused_update ? 1 : recipe.data_parallel;
  if (lanes == 0) lanes = layout_of(recipe, ranks).lanes;
  const int64_t micro_batches = checked_mul(lanes, recipe.gradient_accumulation_steps);
  std::vector<Position> all;
  for (int stages = 1; stages <= ranks; ++stages) {
    const bool wanted =
        !recipe.options.asks_for("pipeline_stages") || stages == recipe.pipeline_stages;
    if (ranks % stages != 0 || !wanted) continue;
    const int64_t replicas = ranks / stages;
    std::string settings = fmt::format("pipeline_stages={}", stages);
    if (Layout::can_share(replicas, lanes)) {
      settings += fmt::format(" data_parallel={}", lanes);
    } else if (!recipe.options.asks_for("data_parallel") && !recipe.fused_update &&
               micro_batches % replicas == 0) {
      settings += fmt::format(" data_parallel={} gradient_accumulation_steps={}", replicas,
                              micro_batches / replicas);
    } else {
      continue;
    }
    const double waits = bubble_of(stages, ceil_div(micro_batches, replicas));
    all.push_back({settings, "", 1.0 / (1.0 - waits)});
  }
  if (all.empty()) layout_of(recipe, ranks);  // says why
  return all;
}

// The most blocks with which a rank's stage fits, the others of the model being somewhere else; 0:
// not even with one.
int64_t most_blocks(const Recipe& recipe, const ModelFiles& files, const Layout& layout, int rank) {
  const Recipe own = of_rank(recipe, rank);
  const int stage = layout.stage_of(rank);
  const int64_t blocks = files.config.num_hidden_layers;
  const bool last = stage + 1 == layout.stages;
  const auto fits_with = [&](int64_t count) {
    // One block for each of the others, but for the one that has the rest.
    std::vector<int64_t> split;
    for (int i = 0; i < stage; ++i) split.push_back(i);
    split.push_back(last ? blocks - count : stage);
    for (int i = stage + 1; i < layout.stages; ++i) split.push_back(count + i - 1);
    split.push_back(blocks);
    SessionUse use = training_use(own);
    use.place = {layout, rank, split};
    return fits(own, Session::rehearse(own, files, use));
  };
  int64_t fitting = 0;
  int64_t too_many = blocks - layout.stages + 2;
  while (too_many - fitting > 1) {
    const int64_t middle = (fitting + too_many) / 2;
    (fits_with(middle) ? fitting : too_many) = middle;
  }
  return fitting;
}

// The plan with the fastest split of blocks that fits.
std::optional<RanksFit> with_fitting_split(const Recipe& recipe, const ModelFiles& files,
                                           const RanksPlan& plan) {
  const bool hopeless = std::ranges::none_of(plan.fits, std::identity());
  if (plan.layout.stages == 1 || !recipe.stage_split.empty() || hopeless) return std::nullopt;
  std::vector<int64_t> most(static_cast<size_t>(plan.layout.stages),
                            files.config.num_hidden_layers);
  for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
    if (plan.like[static_cast<size_t>(rank)] < rank) continue;
    int64_t& of_stage = most[static_cast<size_t>(plan.layout.stage_of(rank))];
    of_stage = std::min(of_stage, most_blocks(recipe, files, plan.layout, rank));
  }
  const std::vector<int64_t> counts = fastest_blocks(files.config, most);
  if (counts.empty()) return std::nullopt;
  RanksFit fit;
  fit.settings = fmt::format("stage_split={}", fmt::join(counts, ","));
  fit.recipe = with_settings(recipe, fit.settings);
  fit.plan = plan_ranks(fit.recipe, files, plan.layout.ranks());
  if (!fit.plan.all_fit()) return std::nullopt;
  return fit;
}

std::optional<RanksFit> fit_with(const Recipe& recipe, const ModelFiles& files, int ranks,
                                 const std::string& settings) {
  const auto make = [&]() -> std::optional<RanksFit> {
    RanksFit fit;
    fit.recipe = with_settings(recipe, settings);
    fit.plan = plan_ranks(fit.recipe, files, ranks);
    if (fit.plan.all_fit()) return fit;
    return with_fitting_split(fit.recipe, files, fit.plan);
  };
  // A combination may make no sense for this model.
  return unless_refused(make).value_or(std::nullopt);
}

std::optional<RanksFit> fastest_arrangement(const Recipe& recipe, const ModelFiles& files,
                                            int ranks) {
  std::vector<Choice> choices;
  for (const Position& arrangement : arrangements(recipe, ranks)) {
    const Recipe arranged = with_settings(recipe, arrangement.settings);
    for (const Choice& choice : combinations(knobs_of(arranged, files))) {
      choices.push_back(
          {join_settings(arrangement.settings, choice.settings), arrangement.cost * choice.cost});
    }
  }
  sort_by_cost(choices);
  for (const Choice& choice : choices) {
    auto fit = fit_with(recipe, files, ranks, choice.settings);
    if (!fit) continue;
    fit->settings = last_of_each(join_settings(choice.settings, fit->settings));
    return fit;
  }
  return std::nullopt;
}

}  // namespace

std::optional<RanksFit> fastest_fit(const Recipe& recipe, const ModelFiles& files, int ranks) {
  return of_first_method(recipe, files,
                         [&](const Recipe& one) { return fastest_arrangement(one, files, ranks); });
}

}  // namespace jackscrew
