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
  RankFacts facts{isa_name(choose_isa(recipe.isa)), open_device(recipe)->arithmetic(),
                  model_fingerprint(files, recipe.adapter)};
  const std::string original = original_model(recipe);
  if (!original.empty()) facts.original = model_fingerprint(open_model(original), {});
  facts.tokenizer = tokenizer_fingerprint(make_tokenizer(recipe.tokenizer, files));
  return facts;
}

void require_version(const std::string& first, const std::string& own) {
  if (own == first) return;
  throw Error(ErrorKind::device, fmt::format("this is jackscrew {}, rank 0 has {}", own, first),
              "install the same version on all machines");
}

void require_same_files(const RankFacts& first, const RankFacts& own) {
  const auto require = [](const char* what, uint32_t of_first, uint32_t of_own) {
    if (of_own == of_first) return;
    throw Error(ErrorKind::model, fmt::format("the {} here is not that of rank 0", what),
                "copy the same files to all machines");
  };
  require("model or adapter", first.model, own.model);
  require("lora_original_model", first.original, own.original);
  require("tokenizer", first.tokenizer, own.tokenizer);
}

void require_alike(std::span<const RankFacts> ranks, const Layout& layout, bool updates_tied) {
  // A pair of ranks that hold copies of `what`, and what to do where their devices differ.
  const auto require = [&](int rank, int other, const char* what, const char* hint) {
    const RankFacts& own = ranks[static_cast<size_t>(rank)];
    const RankFacts& first = ranks[static_cast<size_t>(other)];
    const auto refuse = [&](const std::string& mine, const std::string& theirs,
                            const std::string& way_out) {
      throw Error(ErrorKind::device,
                  fmt::format("rank {} would compute with {}, rank {} with {}: copies of the {} "
                              "would drift apart",
                              rank, mine, other, theirs, what),
                  way_out);
    };
    if (own.gpu != first.gpu) {
      refuse(own.gpu.empty() ? "its CPU" : own.gpu, first.gpu.empty() ? "its CPU" : first.gpu,
             hint);
    }
    // What a GPU computes does not depend on its host's CPU.
    if (!own.gpu.empty() || own.isa == first.isa) return;
    const auto lower = std::min(parse_isa(own.isa), parse_isa(first.isa));
    refuse(own.isa, first.isa,
           fmt::format("set isa={}, which both have", isa_name(lower.value_or(IsaLevel::v3))));
  };
  for (int rank = layout.stages; rank < layout.ranks(); ++rank) {
    require(rank, layout.rank_of(0, layout.stage_of(rank)), "model",
            "give all copies of a stage the same device, or set pipeline_stages");
  }
  if (!updates_tied) return;
  require(layout.rank_of(0, layout.stages - 1), 0, "embedding, which is the head as well,",
          "give the first and the last stage the same device, or let the embedding be: "
          "method=lora");
}

std::vector<std::string> other_settings(const OptionSet& first, const OptionSet& own) {
  std::vector<std::string> names;
  for (const OptionValue& value : own.values()) {
    const std::string name = value.spec.name;
    if (!own.tables()[value.table].saved || name == "communication_timeout") continue;
    if (!same_value(value, first.at(name, "rank 0"))) names.push_back(name);
  }
  return names;
}

Recipe recipe_on(const Recipe& recipe, int rank, std::span<const std::string> hosts) {
  const std::string any = "cuda";
  Recipe own = of_rank(recipe, rank);
  if (own.device != any) return own;
  int before = 0;
  for (int other = 0; other < rank; ++other) {
    const bool beside = hosts[static_cast<size_t>(other)] == hosts[static_cast<size_t>(rank)];
    if (beside && of_rank(recipe, other).device == any) ++before;
  }
  own.device = fmt::format("{}:{}", any, before);
  return own;
}

std::vector<SharedMemory> memory_of(const Recipe& recipe, const SessionUse& use,
                                    const SessionPlan& plan, const std::string& host) {
  const MachineMemory machine = machine_memory(recipe, use, plan);
  std::vector<SharedMemory> out = {{host, machine.needed, machine.available}};
  const auto device = open_device(recipe);
  // With a budget, what is free is the user's business.
  if (const auto own = device->bookable_memory(); own && !recipe.device_memory) {
    out.push_back(
        {fmt::format("{} of {}", device->name(), host), plan.ledger.peak, own, device->identity()});
  }
  return out;
}

void put(MessageWriter& out, const SharedMemory& memory) {
  out.put(memory.place).put(memory.gpu).put(memory.needed).put(memory.available.value_or(-1));
}

SharedMemory get_memory(MessageReader& in) {
  SharedMemory memory;
  memory.place = in.get_text();
  memory.gpu = in.get_text();
  memory.needed = in.get<int64_t>();
  if (const auto available = in.get<int64_t>(); available >= 0) memory.available = available;
  return memory;
}

void require_fit_together(std::span<const SharedMemory> ranks) {
  // A GPU's number is one among those that a process sees: with one for each, all are cuda:0.
  std::map<std::string, std::vector<const SharedMemory*>> places;
  for (const SharedMemory& rank : ranks) {
    places[rank.gpu.empty() ? rank.place : rank.gpu].push_back(&rank);
  }
  for (const auto& [place, in_it] : places) {
    int64_t needed = 0;
    std::optional<int64_t> available;
    for (const SharedMemory* rank : in_it) {
      needed = checked_add(needed, rank->needed);
      if (rank->available) available = std::min(*rank->available, available.value_or(INT64_MAX));
    }
    if (!available || needed <= *available) continue;
    throw Error(ErrorKind::does_not_fit,
                fmt::format("the {} on {} need {} together, but only {} is free there",
                            counted(std::ssize(in_it), "rank"), in_it.front()->place,
                            human_bytes(needed), human_bytes(*available)),
                "start fewer ranks on it, or see `jackscrew plan` for what takes the memory");
  }
}

}  // namespace jackscrew
