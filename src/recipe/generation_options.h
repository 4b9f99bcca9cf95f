// The options of answers: generate and chat.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "base/options.h"

namespace jackscrew {

struct GenerationSettings {
  std::string prompt;
  std::string system;   // empty: none
  int64_t context = 0;  // of a chat
  int64_t max_new_tokens = 0;
  double temperature = 0;
  int64_t top_k = 0;  // 0: all
  double top_p = 0;
  double min_p = 0;
  double repetition_penalty = 0;

  // Throws Error(usage) where no token could be sampled.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> generation_options();

}  // namespace jackscrew
