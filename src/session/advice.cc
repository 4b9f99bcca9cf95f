#include "session/advice.h"

#include <algorithm>
#include <span>

#include "base/text.h"
#include "data/dataset.h"
#include "session/knobs.h"

namespace jackscrew {

namespace {

// `longest` and its halves, of `least` and more; none where a record that is longer is an error.
Knob sequence_lengths(const Recipe& recipe, int64_t longest, int64_t least) {
  constexpr int64_t kShortestText = 64;  // tokens; of a shorter one little is left
  const int64_t shortest = std::max(least, virtual_tokens(recipe) + kShortestText);
  Knob shorter;
  if (recipe.long_record == LongRecord::error) return shorter;
  const char* const remark = recipe.long_record == LongRecord::drop ? "longer records are dropped"
                                                                    : "longer records are cut";
  for (int64_t length = longest; length >= shortest; length /= 2) {
    shorter.positions.push_back({fmt::format("sequence_len={}", length), remark});
  }
  return shorter;
}

// Changes of the task itself rather than of the way it is done.
std::vector<Knob> last_resorts(const Recipe& recipe, const ModelFiles& files) {
  std::vector<Knob> knobs = {
      sequence_lengths(recipe, recipe.sequence_len / 2, recipe.sequence_len / 4)};
  for (Position& method : other_methods(recipe, files)) {
    knobs.push_back({"", {std::move(method)}});
  }
  return knobs;
}

std::vector<Knob> all_knobs(const Recipe& recipe, const ModelFiles& files) {
  std::vector<Knob> knobs = knobs_of(recipe, files);
  for (Knob& knob : last_resorts(recipe, files)) knobs.push_back(std::move(knob));
  return knobs;
}

// The run for which advice is sought.
struct AdvisedRun {
  const Recipe& recipe;
  const ModelFiles& files;
  const SessionPlan& plan;
  std::optional<Place> place;
};

// nullopt when the changed run is refused or saves nothing.
std::optional<Advice> try_settings(const AdvisedRun& run, std::string settings,
                                   std::string remark) {
  const auto changed = rehearse_with(run.recipe, run.files, settings, run.place);
  if (!changed) return std::nullopt;
  const int64_t device = changed->plan.ledger.peak;
  const int64_t host = changed->plan.host.peak;
  Advice advice{std::move(settings),
                std::move(remark),
                device,
                host,
                run.plan.ledger.peak - device,
                run.plan.host.peak - host,
                changed->plan.decomposition_bytes};
  if (advice.device_saving <= 0 && advice.host_saving <= 0) return std::nullopt;
  return advice;
}

std::optional<Advice> try_together(const AdvisedRun& run, std::span<const Position> positions) {
  std::string settings, remark;
  for (const Position& position : positions) {
    settings = join_settings(settings, position.settings);
    remark += (remark.empty() ? "" : "; ") + position.remark;
  }
  return try_settings(run, last_of_each(settings), remark);
}

// `best` is the advice of all positions, which fits. Leaves out those without which it fits as
// well: another method may save so much that its predecessors are not needed.
Advice without_needless(const AdvisedRun& run, const MemoryBudget& budget,
                        std::vector<Position> positions, Advice best) {
  for (size_t i = positions.size(); i-- > 0 && positions.size() > 1;) {
    std::vector<Position> fewer = positions;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    auto advice = try_together(run, fewer);
    if (!advice || !advice->keeps_to(budget)) continue;
    positions = std::move(fewer);
    best = std::move(*advice);
  }
  return best;
}

}  // namespace

std::string Advice::needs() const {
  return human_bytes(device) +
         (host > 0 ? fmt::format(" and {} of the host", human_bytes(host)) : std::string());
}

std::vector<Advice> memory_advice(const Recipe& recipe, const ModelFiles& files,
                                  const SessionPlan& plan) {
  const AdvisedRun run{recipe, files, plan, std::nullopt};
  std::vector<Advice> all;
  for (const Knob& knob : all_knobs(recipe, files)) {
    for (const Position& position : knob.positions) {
      auto advice = try_settings(run, position.settings, position.remark);
      if (advice) all.push_back(std::move(*advice));
    }
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Advice& a, const Advice& b) { return a.saving() > b.saving(); });
  return all;
}

std::optional<Advice> fitting_advice(const Recipe& recipe, const ModelFiles& files,
                                     const SessionPlan& plan, const MemoryBudget& budget,
                                     const std::optional<Place>& place) {
  const AdvisedRun run{recipe, files, plan, place};
  const auto alone = [&](const std::vector<Knob>& knobs) -> std::optional<Advice> {
    for (const Knob& knob : knobs) {
      for (const Position& position : knob.positions) {
        auto advice = try_settings(run, position.settings, position.remark);
        if (advice && advice->keeps_to(budget)) return advice;
      }
    }
    return std::nullopt;
  };
  // Several knobs together, one after another, each turned as far as that saves more.
  std::vector<Position> turned;
  int64_t saving = 0;
  const auto together = [&](const std::vector<Knob>& knobs) -> std::optional<Advice> {
    for (const Knob& knob : knobs) {
      std::vector<Position> with_this = turned;
      for (const Position& position : knob.positions) {
        std::vector<Position> tried = turned;
        tried.push_back(position);
        auto advice = try_together(run, tried);
        if (!advice || advice->saving() <= saving) continue;
        saving = advice->saving();
        if (advice->keeps_to(budget)) {
          return without_needless(run, budget, std::move(tried), std::move(*advice));
        }
        with_this = std::move(tried);
      }
      turned = std::move(with_this);
    }
    return std::nullopt;
  };
  if (auto advice = alone(knobs_of(recipe, files))) return advice;
  if (auto advice = together(all_knobs(recipe, files))) return advice;
  // together() passes over a setting that saves no more than those turned before it, although it
  // may fit alone.
  if (auto advice = alone(last_resorts(recipe, files))) return advice;
  const std::vector<Knob> much_shorter = {sequence_lengths(recipe, recipe.sequence_len / 8, 0)};
  if (auto advice = alone(much_shorter)) return advice;
  return together(much_shorter);
}

}  // namespace jackscrew
