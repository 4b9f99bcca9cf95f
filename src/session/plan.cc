#include "session/plan.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/text.h"
#include "data/batch.h"

namespace jackscrew {

SessionUse training_use(const Recipe& recipe) {
  const int64_t lanes = std::max<int64_t>(1, recipe.data_parallel);
  check_lanes(recipe, lanes);
  return {.training = true,
          .tokens = checked_mul(recipe.micro_batch_size, recipe.sequence_len),
          .max_positions = recipe.sequence_len,
          .kv_tokens = 0,
          .logits_rows = recipe.report_samples > 0 ? 1 : 0,
          .place = {.layout = {.lanes = lanes}}};
}

bool MemoryBudget::holds(int64_t device_bytes, int64_t host_bytes, int64_t beside) const {
  return (!device || device_bytes <= *device) && (!host || host_bytes <= *host) &&
         (!together || device_bytes + host_bytes + beside <= *together);
}

bool fits(const Recipe& recipe, const SessionPlan& plan) {
  const MemoryBudget budget{recipe.device_memory, recipe.host_memory, {}};
  return budget.holds(plan.ledger.peak, plan.host.peak);
}

int64_t virtual_tokens(const Recipe& recipe) {
  return find_learner(recipe.learner).make(recipe.options)->virtual_tokens();
}

bool makes_adapter(const Recipe& recipe) {
  return !find_learner(recipe.learner).make(recipe.options)->adapter().is_null();
}

std::string original_model(const Recipe& recipe) {
  return find_learner(recipe.learner).make(recipe.options)->original_model();
}

void settle_lengths(Recipe& recipe, const ModelFiles& files) {
  const int64_t positions = files.config.longest_sequence();
  if (recipe.sequence_len > positions && !recipe.options.was_set("sequence_len")) {
    recipe.sequence_len = positions;
    recipe.options.imply("sequence_len", std::to_string(positions), files.origin);
  }
  if (recipe.sequence_len > positions) {
    throw Error(ErrorKind::usage,
                fmt::format("sequence_len is {}, but {} has only {} positions", recipe.sequence_len,
                            files.origin, positions),
                fmt::format("use sequence_len={}", positions));
  }
  if (const int64_t before = virtual_tokens(recipe); recipe.sequence_len < before + 2) {
    throw Error(ErrorKind::usage,
                fmt::format("sequence_len {} has no room for a text after {} virtual tokens",
                            recipe.sequence_len, before),
                // An adapter has as many as it was trained with.
                recipe.adapter.empty() ? "raise sequence_len, or lower prompt_tokens"
                                       : "raise sequence_len");
  }
  // The activations of so many tokens fit no device of today by far, and planning takes memory too.
  constexpr int64_t kMostTokens = int64_t{1} << 22;
  require_micro_batch(recipe.micro_batch_size, recipe.sequence_len, kMostTokens);
}

std::string purposes_text(const Ledger& ledger) {
  std::string out;
  for (size_t p = 0; p < kPurposes; ++p) {
    const int64_t bytes = ledger.at_peak[p];
    if (bytes < ledger.peak / 100 || bytes == 0) continue;
    out += fmt::format("{}{} {}", out.empty() ? "" : ", ", purpose_name(static_cast<Purpose>(p)),
                       human_bytes(bytes));
  }
  return out;
}

JsonObject purposes_json(const std::array<int64_t, kPurposes>& booked) {
  JsonObject purposes;
  for (size_t p = 0; p < kPurposes; ++p) {
    if (booked[p] > 0) purposes.add(purpose_name(static_cast<Purpose>(p)), booked[p]);
  }
  return purposes;
}

JsonObject ledger_json(const Ledger& ledger) {
  return purposes_json(ledger.at_peak).add("peak", ledger.peak);
}

JsonObject plan_json(const Recipe& recipe, const SessionPlan& plan, const DiskPlan& disk) {
  JsonObject json;
  json.add("device", ledger_json(plan.ledger));
  json.add("host", ledger_json(plan.host));
  json.add("disk", JsonObject()
                       .add("masters", disk.masters)
                       .add("checkpoints", disk.all_checkpoints())
                       .add("result", disk.result)
                       .add("exports", disk.exports)
                       .add("peak", disk.peak()));
  json.add("mapped", plan.mapped_bytes);
  return json.add("fits", fits(recipe, plan)).add("peak_at", plan.ledger.peak_at);
}

}  // namespace jackscrew
