// Helpers that the subcommands share: reading arguments, output, and the environment.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/options.h"
#include "cli/commands.h"
#include "recipe/recipe.h"
#include "report/progress.h"
#include "session/model_files.h"

namespace jackscrew {

// All options of a run in this program, with their defaults.
OptionSet program_options();

// read_recipe() with the program's learners, where the command's row in the table of commands says
// what it reads; warns of options on the command line that it does not. Throws Error(usage) when
// more than `max_operands` operands are left beside the recipe file, or for a dry run of a command
// that has none.
Recipe read_arguments(Arguments arguments, size_t max_operands, const std::string& command);

// Runs a command on the recipe of read_arguments(); with print_config, prints the recipe and runs
// nothing. Returns the exit code.
int with_recipe(Arguments arguments, size_t max_operands, const std::string& command,
                const std::function<int(const Recipe&)>& run);
// The same for a command that without_budget_hint() is meant for.
int with_unbudgeted_recipe(Arguments arguments, size_t max_operands, const std::string& command,
                           const std::function<int(const Recipe&)>& run);

// Throws Error(generic) if something written to stdout was lost, as on a full disk: the command
// must not report success then.
inline constexpr const char* kOutputLost = "cannot write to the standard output";
void flush_output();

// Prints an error and what to do about it to stderr; returns the exit code.
int report_error(const std::string& what, const std::string& hint, int exit_code);

// Warns of options in `names` that the command line sets although `command` does not read them in
// this case; in a recipe file they may be meant for another. read_arguments() has warned of those
// that the command never reads. `where` says when they are not read: " without eval_data".
void warn_of_unused(const Recipe& recipe, std::string_view command,
                    const std::vector<std::string>& names, std::string_view where = "");

// Warns of a recipe's data_weights where the command line names other data, as many: which of them
// has which weight was not chosen for these.
void warn_of_weights(const Recipe& recipe);

// Throws Error(usage) where `output` cannot become a file, or where something is there already and
// would be lost: a file is replaced with overwrite=true. So does what is read where it has the name
// that the output has until it is whole, and where no such name can be.
void check_output_file(const Recipe& recipe);

// The names of the options that say how texts are read.
std::vector<std::string> options_of_texts(const OptionSet& options);

// The recipe of a command that writes a model. Its `storage` is of the files: one of a run's
// memory, set in the run's recipe (with a warning) or implied by its method, becomes `keep`.
// format=bnb becomes format=hf storage=nf4. Throws Error(usage) for format=bnb with another
// storage.
Recipe with_storage_of_files(Recipe recipe);

// Throws Error(usage) when the model is only a shape and the recipe does not ask for random
// weights; warns of tensors that are not used.
void require_weights(const Recipe& recipe, const ModelFiles& files);

// The roots of the active Python environments: VIRTUAL_ENV and CONDA_PREFIX.
std::vector<fs::path> python_environments();

// Whether stdout is a terminal that shows colours, and the environment does not forbid them.
bool stdout_colour();
// Its columns; 0 where it is not a terminal.
int stdout_width();

// How progress is shown on stderr: NO_COLOR, TERM=dumb and a redirected stderr are respected.
ProgressStyle stderr_style(bool quiet);

}  // namespace jackscrew
