// The options of a run: the tables behind recipes, the command line and the help.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "base/options.h"

namespace jackscrew {

// Titles of the option tables, for commands that read only some of them.
namespace option_titles {
inline constexpr const char* kModel = "Model";
inline constexpr const char* kData = "Data";
inline constexpr const char* kRecords = "Records";
inline constexpr const char* kRanks = "Ranks";
inline constexpr const char* kMethod = "Method";
inline constexpr const char* kSchedule = "Schedule and optimizer";
inline constexpr const char* kMachine = "Machine";
inline constexpr const char* kOutput = "Output, evaluation and checkpoints";
inline constexpr const char* kEvaluation = "Evaluation";
inline constexpr const char* kConversion = "Conversion";
inline constexpr const char* kQuantisation = "Quantisation";
inline constexpr const char* kGeneration = "Generation";
inline constexpr const char* kCall = "This call";
}  // namespace option_titles

std::span<const OptionTable> run_option_tables();

// A named method: values for other options, applied where the user has not set them.
struct Preset {
  const char* name;
  const char* settings;  // "learner=lora learning_rate=2e-4"
  const char* help;
};

std::span<const Preset> presets();

// nullptr where no preset has that name.
const Preset* find_preset(std::string_view name);

// The origin of what a method sets, and whether a value has such an origin: its method gave it.
std::string method_origin(std::string_view method);
bool comes_with_method(const OptionValue& option);

// Whether `storage` is of files that are written, which share its name with a run's weights in
// memory. On the command line it is. In a recipe file that has a method it is the run's, unless
// no run could have it, or the file says what is written, too (`format`, `output`).
bool is_storage_of_files(const OptionSet& options);

}  // namespace jackscrew
