#include "train/opening.h"

#include <algorithm>
#include <map>

#include "base/checked.h"
#include "base/text.h"
#include "kernels/isa.h"
#include "session/fingerprint.h"
#include "session/fit.h"

namespace jackscrew {

RankFacts facts_of(const Recipe& recipe, const ModelFiles& files) {
  return {isa_name(choose_isa(recipe.isa)), model_fingerprint(files, recipe.adapter)};
}

void put(MessageWriter& out, const RankFacts& facts) {
  out.put(facts.isa).put(facts.model);
}

RankFacts get_facts(MessageReader& in) {
  RankFacts facts;
  facts.isa = in.get_text();
  facts.model = in.get<uint32_t>();
  return facts;
}

void require_version(const std::string& first, const std::string& own) {
  if (own == first) return;
  throw Error(ErrorKind::device, fmt::format("this is jackscrew {}, rank 0 has {}", own, first),
              "install the same version on all machines");
}

void require_alike(const RankFacts& first, const RankFacts& own, const Layout& layout) {
  if (own.model != first.model) {
    throw Error(ErrorKind::model, "the model or adapter here is not that of rank 0",
                "copy the same files to all machines");
  }
  if (layout.replicas == 1 || own.isa == first.isa) return;
  const auto lower = std::min(parse_isa(own.isa), parse_isa(first.isa));
  throw Error(ErrorKind::device,
              fmt::format("this CPU would compute with {}, rank 0 with {}: copies of the model "
                          "would drift apart",
                          own.isa, first.isa),
              fmt::format("set isa={}, which both have", isa_name(lower.value_or(IsaLevel::v3))));
}

RankMemory memory_of(const Recipe& recipe, const SessionPlan& plan, const std::string& host) {
  const MachineMemory memory = machine_memory(recipe, plan);
  return {host, memory.needed, memory.available};
}

void require_fit_together(std::span<const RankMemory> ranks) {
  std::map<std::string, std::vector<const RankMemory*>> machines;
  for (const RankMemory& rank : ranks) machines[rank.host].push_back(&rank);
  for (const auto& [host, on_it] : machines) {
    int64_t needed = 0;
    std::optional<int64_t> available;
    for (const RankMemory* rank : on_it) {
      needed = checked_add(needed, rank->needed);
      if (rank->available) available = std::min(*rank->available, available.value_or(INT64_MAX));
    }
    if (!available || needed <= *available) continue;
    throw Error(ErrorKind::does_not_fit,
                fmt::format("the {} on {} need {} together, but only {} is free there",
                            counted(std::ssize(on_it), "rank"), host, human_bytes(needed),
                            human_bytes(*available)),
                "start fewer ranks on it, or see `jackscrew plan` for what takes the memory");
  }
}

}  // namespace jackscrew
