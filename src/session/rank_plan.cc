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
  for (int stage = 0; stage < plan.layout.stages; ++stage) {
    use.place.rank = plan.layout.rank_of(0, stage);
    plan.stages.push_back(Session::rehearse(recipe, files, use));
  }
  return plan;
}

bool all_fit(const Recipe& recipe, const RanksPlan& plan) {
  return std::ranges::all_of(plan.stages,
                             [&](const SessionPlan& stage) { return fits(recipe, stage); });
}

std::string ranks_json(const RanksPlan& plan) {
  std::string all;
  for (int rank = 0; rank < plan.layout.ranks(); ++rank) {
    const auto stage = static_cast<size_t>(plan.layout.stage_of(rank));
    const SessionPlan& of = plan.stages[stage];
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
