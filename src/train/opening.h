// Checks that ranks make before any of them allocates: all have the same program and model, and
// each machine has room for all ranks on it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "parallel/message.h"
#include "session/session.h"

namespace jackscrew {

// What must be the same on all ranks, or they would compute different things.
struct RankFacts {
  std::string isa;     // the level that this machine would compute with
  uint32_t model = 0;  // model_fingerprint()
};
RankFacts facts_of(const Recipe& recipe, const ModelFiles& files);
void put(MessageWriter& out, const RankFacts& facts);
RankFacts get_facts(MessageReader& in);

// Throws Error(device) where rank 0's program is of another version than this rank's: only equal
// versions understand each other's messages.
void require_version(const std::string& first, const std::string& own);
// `first` is rank 0's. Throws Error(model) or Error(device). Instruction sets may differ between
// the stages of a pipeline, but not between replicas.
void require_alike(const RankFacts& first, const RankFacts& own, const Layout& layout);

// The memory of one rank.
struct RankMemory {
  std::string host;
  int64_t needed = 0;                // bytes of that machine's memory, in total
  std::optional<int64_t> available;  // free there, bytes; nullopt: no limit
};
RankMemory memory_of(const Recipe& recipe, const SessionPlan& plan, const std::string& host);
// Throws Error(does_not_fit) where the ranks of one machine together need more than it has.
void require_fit_together(std::span<const RankMemory> ranks);

}  // namespace jackscrew
