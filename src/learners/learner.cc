#include "learners/learner.h"

#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "learners/frozen.h"
#include "learners/full.h"
#include "learners/galore.h"
#include "learners/lora.h"
#include "learners/prompt.h"
#include "learners/rotary.h"

namespace jackscrew {

nlohmann::json Learner::adapter() const {
  return nullptr;
}

std::span<const LearnerEntry> all_learners() {
  static const std::array<LearnerEntry, 6> kLearners = {{
      {"full", "trains all weights", {}, {}, [](const OptionSet&) { return make_full_learner(); }},
      {"lora",
       "low-rank adapters beside frozen weights",
       lora_options(),
       {},
       [](const OptionSet& options) { return make_lora_learner(options); }},
      {"prompt",
       "vectors of virtual tokens before frozen weights",
       prompt_options(),
       {},
       [](const OptionSet& options) { return make_prompt_learner(options); }},
      {"rotary", "trains all weights, a few of them at a time", rotary_options(), rotary_savings(),
       [](const OptionSet& options) { return make_rotary_learner(options); }},
      {"galore", "trains all weights in place, linear layers in subspaces of their gradients",
       galore_options(), galore_savings(),
       [](const OptionSet& options) { return make_galore_learner(options); }},
      {"frozen",
       "nothing learns: evaluation and generation",
       {},
       {},
       [](const OptionSet&) -> std::unique_ptr<Learner> {
         return std::make_unique<FrozenLearner>();
       }},
  }};
  return kLearners;
}

const LearnerEntry& find_learner(std::string_view name) {
  std::vector<std::string> names;
  for (const LearnerEntry& entry : all_learners()) {
    if (name == entry.name) return entry;
    names.emplace_back(entry.name);
  }
  const auto nearest = nearest_name(name, names);
  throw Error(ErrorKind::usage, fmt::format("unknown learner {}", name),
              nearest ? "did you mean " + *nearest + "?"
                      : fmt::format("known learners: {}", fmt::join(names, ", ")));
}

}  // namespace jackscrew
