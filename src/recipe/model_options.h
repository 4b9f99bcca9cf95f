// The options that name a model, its adapters, its tokenizer and its chat template.
#pragma once

#include <chrono>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/options.h"

namespace jackscrew {

struct ModelSettings {
  std::string model;
  std::string adapter;                // the first of `adapters`; empty: none
  std::vector<std::string> adapters;  // several: for commands that merge them into one model
  bool random_init = false;
  std::string checkpoint_dtype;
  std::string tokenizer;
  std::string chat_template;
  std::optional<std::chrono::year_month_day> chat_date;  // none: today

  // Throws Error(usage) for values that contradict each other.
  void read(const OptionSet& options);
};

std::span<const OptionSpec> model_options();

}  // namespace jackscrew
