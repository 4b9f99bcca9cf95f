#include "recipe/run_options.h"

#include <fmt/format.h>

#include <algorithm>

#include "quant/format.h"
#include "recipe/call_options.h"
#include "recipe/conversion_options.h"
#include "recipe/data_options.h"
#include "recipe/generation_options.h"
#include "recipe/machine_options.h"
#include "recipe/method_options.h"
#include "recipe/model_options.h"
#include "recipe/output_options.h"
#include "recipe/quantise_options.h"
#include "recipe/rank_options.h"
#include "recipe/record_options.h"
#include "recipe/schedule_options.h"

namespace jackscrew {

namespace {

constexpr Preset kPresets[] = {
    {"full", "learner=full learning_rate=1e-5", "trains every weight"},
    {"lora", "learner=lora learning_rate=2e-4", "trains low-rank adapters over frozen weights"},
    {"qlora", "learner=lora storage=nf4 learning_rate=2e-4",
     "trains low-rank adapters over frozen weights in 4 bits (NF4)"},
    {"prompt", "learner=prompt learning_rate=1e-2",
     "trains the vectors of virtual tokens before every text, a soft prompt; weights are frozen"},
    {"rotary", "learner=rotary storage=int8 optimizer=adamw_8bit learning_rate=1e-5",
     "trains every weight, a few of them at a time, over int8 weights"},
    {"galore", "learner=galore learning_rate=1e-5",
     "trains every weight where it is stored, in subspaces of the gradients"},
    {"qgalore",
     "learner=galore storage=int8_affine projection_dtype=int4 optimizer=adamw_8bit "
     "update=fused max_grad_norm_of=weight learning_rate=1e-5",
     "the same with int8 weights, 4-bit subspaces and 8-bit states (Q-GaLore)"},
};

}  // namespace

std::span<const OptionTable> run_option_tables() {
  static const OptionTable kTables[] = {
      {option_titles::kModel, model_options()},
      {option_titles::kData, data_options()},
      {option_titles::kRecords, record_options()},
      {option_titles::kRanks, rank_options()},
      {option_titles::kMethod, method_options()},
      {option_titles::kSchedule, schedule_options()},
      {option_titles::kMachine, machine_options()},
      {option_titles::kOutput, output_options()},
      {option_titles::kEvaluation, evaluation_options()},
      {option_titles::kConversion, conversion_options()},
      {option_titles::kQuantisation, quantise_options()},
      {option_titles::kGeneration, generation_options()},
      {option_titles::kCall, call_options(), /*saved=*/false},
  };
  return kTables;
}

std::span<const Preset> presets() {
  return kPresets;
}

const Preset* find_preset(std::string_view name) {
  for (const Preset& preset : kPresets) {
    if (preset.name == name) return &preset;
  }
  return nullptr;
}

std::string method_origin(std::string_view method) {
  return fmt::format("method {}", method);
}

bool comes_with_method(const OptionValue& option) {
  return std::ranges::any_of(
      presets(), [&](const Preset& preset) { return option.origin == method_origin(preset.name); });
}

bool is_storage_of_files(const OptionSet& options) {
  const OptionValue& storage = options.at("storage", "recipe");
  if (!storage.explicitly_set || storage.origin == kCommandLine) return storage.explicitly_set;
  const auto is_of_file = [&](const char* name) {
    const OptionValue& option = options.at(name, "recipe");
    return option.explicitly_set && option.origin != kCommandLine && !comes_with_method(option);
  };
  const auto is_changed_by_file = [&](const char* name) {
    return options.is_changed(name) && is_of_file(name);
  };
  const Format* format = format_named(storage.text);
  const bool may_be_a_runs = storage.text == "keep" || (format != nullptr && format->can_encode());
  const bool is_of_a_run = is_of_file("method") || is_of_file("learner");
  return !may_be_a_runs || !is_of_a_run || is_changed_by_file("format") ||
         is_changed_by_file("output");
}

}  // namespace jackscrew
