// What ranks settle before any of them allocates: that they have the same program and model, and
// that each machine has room for all ranks on it.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "parallel/message.h"
#include "session/session.h"

namespace jackscrew {

// What all ranks must have alike, or they would not compute the same.
struct RankFacts {
  std::string isa;     // the level that this machine would compute with
  uint32_t model = 0;  // model_fingerprint()
};
RankFacts facts_of(const Recipe& recipe, const ModelFiles& files);
void put(MessageWriter& out, const RankFacts& facts);
RankFacts get_facts(MessageReader& in);

// Throws Error(device) where another rank's program is of another version; messages are understood
// by the same one alone.
void require_version(const std::string& first, const std::string& own);
// `first`: rank 0's. Throws Error(model) or Error(device). Instruction sets may differ between the
// stages of a pipeline, but not between replicas.
void require_alike(const RankFacts& first, const RankFacts& own, const Layout& layout);

// Ranks exchange tensors as they lie in memory. Throws Error(usage) for a device whose memory the
// host cannot read.
void require_host_memory(const Device& device);

// Of one rank.
struct RankMemory {
  std::string host;
  int64_t needed = 0;                // bytes of that machine's memory, in all
  std::optional<int64_t> available;  // that it can take there; nullopt: nobody holds it to a number
};
RankMemory memory_of(const Recipe& recipe, const SessionPlan& plan, const std::string& host);
// Throws Error(does_not_fit) where the ranks of one machine need more than it has.
void require_fit_together(std::span<const RankMemory> ranks);

}  // namespace jackscrew
