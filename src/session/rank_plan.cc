#include "session/rank_plan.h"

#include "parallel/schedule.h"

namespace jackscrew {

namespace {

// Whether two ranks have the same device and budget.
bool are_alike(const Recipe& recipe, int a, int b) {
  const auto same = [&](const auto& of_ranks) {
    return of_ranks.empty() || of_ranks[static_cast<size_t>(a)] == of_ranks[static_cast<size_t>(b)];
  };
  return same(recipe.rank_devices) && same(recipe.rank_device_memory);
}

}  // namespace

RanksPlan plan_ranks(const Recipe& recipe, const ModelFiles& files, int ranks) {
  RanksPlan plan;
  plan.layout = layout_of(recipe, ranks);
  plan.stage_split = stage_split_of(recipe, files.config, plan.layout.stages);
  plan.bubble = bubble_of(plan.layout.stages, checked_mul(plan.layout.lanes_of_replica(),
                                                          recipe.gradient_accumulation_steps));
  SessionUse use = training_use(recipe);
  use.place = {plan.layout, 0, plan.stage_split};
  for (int rank = 0; rank < ranks; ++rank) {
    const int stage = plan.layout.stage_of(rank);
    int like = stage;
    while (!are_alike(recipe, like, rank)) like += plan.layout.stages;
    plan.like.push_back(like);
    if (like < rank) {
      plan.ranks.push_back(plan.ranks[static_cast<size_t>(like)]);
      plan.fits.push_back(plan.fits[static_cast<size_t>(like)]);
      continue;
    }
    const Recipe own = of_rank(recipe, rank);
    use.place.rank = rank;
    plan.ranks.push_back(Session::rehearse(own, files, use));
    plan.fits.push_back(fits(own, plan.ranks.back()));
  }
  return plan;
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
    json.add("disk", JsonObject().add("masters", of.disk.peak));
    json.add("sent_stream", of.sent.stream).add("sent_gradient", of.sent.gradient);
    all += (all.empty() ? "" : ", ") + json.text();
  }
  return "[" + all + "]";
}

}  // namespace jackscrew
