#include "session/rank_plan.h"

#include <algorithm>

#include "parallel/schedule.h"

namespace jackscrew {

RanksPlan plan_ranks(const Recipe& recipe, const ModelFiles& files, int ranks) {
  RanksPlan plan;
  plan.layout = layout_of(recipe, ranks);
  plan.stage_split = stage_split_of(recipe, files.config, plan.layout.stages);
  plan.bubble = bubble_of(plan.layout.stages, checked_mul(plan.layout.lanes_of_replica(),
                                                          recipe.gradient_accumulation_steps));
  SessionUse use = training_use(recipe);
  use.place = {plan.layout, 0, plan.stage_split};
  std::vector<Recipe> recipes;
  for (int rank = 0; rank < ranks; ++rank) {
    const Recipe& own = recipes.emplace_back(of_rank(recipe, rank));
    const auto is_like = [&](int other) {
      const Recipe& theirs = recipes[static_cast<size_t>(other)];
      return plan.layout.stage_of(other) == plan.layout.stage_of(rank) &&
             theirs.device == own.device && theirs.device_memory == own.device_memory;
    };
    int like = 0;
    while (!is_like(like)) ++like;
    plan.like.push_back(like);
    use.place.rank = rank;
    plan.ranks.push_back(like < rank ? plan.ranks[static_cast<size_t>(like)]
                                     : Session::rehearse(own, files, use));
  }
  return plan;
}

bool all_fit(const Recipe& recipe, const RanksPlan& plan) {
  for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
    if (!fits(of_rank(recipe, rank), plan.ranks[static_cast<size_t>(rank)])) return false;
  }
  return true;
}

std::string ranks_json(const RanksPlan& plan) {
  std::string all;
  for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
    const auto stage = static_cast<size_t>(plan.layout.stage_of(rank));
    const SessionPlan& of = plan.ranks[static_cast<size_t>(rank)];
    JsonObject json;
    json.add("rank", rank).add("replica", plan.layout.replica_of(rank)).add("stage", stage);
    if (!plan.stage_split.empty()) {
      json.add("first_block", plan.stage_split[stage]);
      json.add("last_block", plan.stage_split[stage + 1] - 1);
    }
    json.add("device", ledger_json(of.ledger));
    json.add("host", ledger_json(of.host));
    json.add("sent_stream", of.sent.stream).add("sent_gradient", of.sent.gradient);
    all += (all.empty() ? "" : ", ") + json.text();
  }
  return "[" + all + "]";
}

}  // namespace jackscrew
