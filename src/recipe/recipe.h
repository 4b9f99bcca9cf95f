// A recipe: everything that a run was asked to do, resolved and checked.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/command_line.h"
#include "base/file.h"
#include "base/options.h"
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
#include "recipe/run_options.h"
#include "recipe/schedule_options.h"

namespace jackscrew {

// The options that only one learner or one product reads.
struct MethodTable {
  const char* choice;  // the option that chooses it: "learner"
  const char* name;    // the value that does: "lora"
  std::span<const OptionSpec> options;
};

// The options of run_option_tables() as typed values; each table has them beside it.
struct Recipe : ModelSettings,
                DataSettings,
                RecordSettings,
                RankSettings,
                MethodSettings,
                ScheduleSettings,
                MachineSettings,
                OutputSettings,
                ConversionSettings,
                QuantiseSettings,
                GenerationSettings,
                CallSettings {
  OptionSet options;                        // all values; learners and products read theirs here
  std::vector<std::string> skipped_titles;  // option tables of learners and products not in use
  std::vector<std::string> operands;        // of the command line, without the recipe file
  std::string file;                         // that recipe file; empty: none was named
  std::string left_out;                     // what read_recipe() left out of the file, if anything
  // Set by whoever runs the recipe, see open_device(); not part of its text.
  std::vector<fs::path> python_environments;

  // The resolved recipe as YAML, which reads back as the same run.
  std::string to_yaml() const { return options.to_yaml(skipped_titles); }
};

// The options of all learners and products in the program.
std::span<const MethodTable> method_tables();

// The title of such an option table: "Learner lora".
std::string method_title(const MethodTable& table);

// All options of a run with their defaults, including those of `tables`.
OptionSet run_options(std::span<const MethodTable> tables);

// Applies the preset of `method` to options that are not set explicitly, then checks the values
// against each other. Throws Error(usage) naming contradictory options.
Recipe resolve_recipe(OptionSet options, std::span<const MethodTable> tables);

// Throws Error(usage) for options of learners other than the adapter's, which is then in use:
// without an adapter resolve_recipe() refuses them.
void refuse_other_learners(const OptionSet& options);

// Throws Error(usage) where options of the learner or the product contradict each other, whatever
// the model and the machine are. The learner of an adapter has settings that only its files say.
void check_method(const Recipe& recipe);

// Whether two values of the option `product` name the same one.
bool is_same_product(const std::string& a, const std::string& b);

// Sets `method`, and takes back what the preset of the method before has set.
void choose_method(OptionSet& options, const std::string& method, const std::string& origin);

// The recipe with another method if neither a method nor a learner was set; else as it is.
Recipe with_method(Recipe recipe, const std::string& method, const std::string& origin);

// Whether a command reads an option.
using ReadsOption = std::function<bool(const OptionSet& options, const OptionValue& option)>;

// Reads a recipe from a command's arguments: the first operand that ends in .yaml or .yml is the
// recipe file, and the arguments override it: another method than the file's also what the file
// sets with that, which `left_out` then says; of eval_data and val_size each the file's other.
// Options that were set and that `reads` says no to are then passed over, as if they were not
// there, unless the recipe is only printed. Throws Error(usage).
Recipe read_recipe(std::span<const std::string> arguments, std::span<const MethodTable> tables,
                   const ReadsOption& reads = {});

}  // namespace jackscrew
