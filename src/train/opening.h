// Checks that ranks make before any of them allocates: all have the same program and model, and
// each machine has room for all ranks on it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "parallel/message.h"
#include "session/session.h"

namespace jackscrew {

// What decides whether ranks compute the same.
struct RankFacts {
  std::string isa;     // the level that this machine would compute with
  std::string gpu;     // Device::arithmetic(); empty: the CPU computes
  uint32_t model = 0;  // model_fingerprint()
  // Of the model before it was quantised, by which adapters begin; 0 without one.
  uint32_t original = 0;
  uint32_t tokenizer = 0;  // tokenizer_fingerprint()
};
RankFacts facts_of(const Recipe& recipe, const ModelFiles& files);
auto fields(Either<RankFacts> auto& facts) {
  return std::tie(facts.isa, facts.gpu, facts.model, facts.original, facts.tokenizer);
}

// Throws Error(device) where rank 0's program is of another version than this rank's: only equal
// versions understand each other's messages.
void require_version(const std::string& first, const std::string& own);
// Throws Error(model) where this rank reads another model or tokenizer than rank 0.
void require_same_files(const RankFacts& first, const RankFacts& own);
// `ranks` [ranks]. Throws Error(device) where copies of a weight would be updated by different
// instruction sets or GPUs: those of a stage, and with `updates_tied` (SessionPlan) those of the
// embedding at both ends of a pipeline. Other stages may differ.
void require_alike(std::span<const RankFacts> ranks, const Layout& layout, bool updates_tied);

// The names of the settings with which a rank was started and rank 0 was not. All ranks follow rank
// 0's; how long to wait for others is each rank's own affair.
std::vector<std::string> other_settings(const OptionSet& first, const OptionSet& own);

// The recipe as `rank` follows it, see of_rank(). Where it computes on `cuda`, that is the GPU of
// its place among the ranks of its machine that do. `hosts` [ranks]: the machine of each.
Recipe recipe_on(const Recipe& recipe, int rank, std::span<const std::string> hosts);

// Memory that ranks share where they run on one machine, or compute on one GPU of it.
struct SharedMemory {
  std::string place;  // "anna", or "cuda:0 of anna"
  int64_t needed = 0;
  std::optional<int64_t> available;  // free there, bytes; nullopt: no limit
  std::string gpu = {};              // Device::identity(); empty: the machine's memory
};
// What a rank takes of its machine's memory and, where it computes on one, of its GPU's.
std::vector<SharedMemory> memory_of(const Recipe& recipe, const SessionUse& use,
                                    const SessionPlan& plan, const std::string& host);
void put(MessageWriter& out, const SharedMemory& memory);
SharedMemory get_memory(MessageReader& in);
// Throws Error(does_not_fit) where ranks together need more than a place has.
void require_fit_together(std::span<const SharedMemory> ranks);

}  // namespace jackscrew
