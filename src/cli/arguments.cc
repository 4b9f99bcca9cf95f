#include "cli/arguments.h"

#include <fmt/ranges.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/list_text.h"
#include "base/output_name.h"
#include "base/shared_names.h"
#include "base/shell_word.h"
#include "base/text.h"
#include "cli/launch.h"
#include "conversion/model_output.h"
#include "data/data_files.h"
#include "recipe/recipe_file.h"
#include "recipe/recipe_text.h"
#include "recipe/run_options.h"
#include "session/adapter.h"
#include "train/output_dir.h"

namespace jackscrew {

namespace {

const OptionTable& table_of(const OptionSet& options, const OptionValue& option) {
  return options.tables()[option.table];
}

bool uses(const Subcommand& command, const OptionSet& options, const OptionValue& option) {
  return command.uses(option.spec, table_of(options, option).title, options);
}

// Whether a command reads an option of a learner or product. Those of one that is not chosen are
// not looked at: read_recipe() refuses them. Those of a learner mean something where it learns, and
// where an adapter is used that it made.
bool reads(const Subcommand& command, const OptionSet& options, const MethodTable& of) {
  if (of.choice == std::string_view("learner") && !options.list("adapter").empty()) return true;
  return uses(command, options, options.at(of.choice, command.name));
}

// Whether a command trains, or looks at a run that would.
bool trains(const Subcommand& command, const OptionSet& options) {
  return uses(command, options, options.at("learner", command.name));
}

// Whether a recipe's weights are of other data sets than those that the command line names.
bool weighs_others(const OptionSet& options, const OptionValue& option) {
  if (option.spec.name != std::string_view("data_weights")) return false;
  const OptionValue& data = options.at("data", "data_weights");
  return option.origin != kCommandLine && data.origin == kCommandLine &&
         option.items.size() != data.items.size();
}

bool reads(const Subcommand& command, const OptionSet& options, const OptionValue& option) {
  const std::string_view name = option.spec.name;
  // They decide the values of other options, so every command reads them.
  if (name == "method" || name == "learner") return true;
  if (name == "dry_run") return true;  // refuse_dry_run() must see it
  const bool is_asked = option.origin == kCommandLine;
  if (weighs_others(options, option)) return false;
  if (uses(command, options, option)) return is_asked || !command.must_be_asked(option.spec);
  for (const MethodTable& table : method_tables()) {
    if (method_title(table) != table_of(options, option).title) continue;
    if (!is_asked) return true;  // a recipe's method comes with its options
    return reads(command, options, table) &&
           (!option.spec.training_only || trains(command, options));
  }
  return false;
}

// A command without a dry run would do what it was asked only to show.
void refuse_dry_run(const Recipe& recipe, const Subcommand& command) {
  const OptionValue& dry_run = recipe.options.at("dry_run", command.name);
  if (!recipe.dry_run || uses(command, recipe.options, dry_run)) return;
  throw Error(
      ErrorKind::usage, fmt::format("{}: {} has no dry run", dry_run.origin, command.name),
      "leave dry_run out; quantize has it, and `jackscrew plan` shows what train would take");
}

// The recipe that a run has left names the model that it began from, which is easily taken for what
// it made.
void warn_of_untrained(const Recipe& recipe, const Subcommand& command) {
  const auto option = [&](const char* name) { return recipe.options.at(name, command.name); };
  const bool computes = uses(command, recipe.options, option("device"));
  if (command.writes_recipes || !computes || option("adapter").origin == kCommandLine) return;
  const std::string origin = option("model").origin;  // a line of a file: "runs/a/recipe.yaml:3"
  const fs::path file = origin.substr(0, origin.rfind(':'));
  const fs::path run = file.has_parent_path() ? file.parent_path() : ".";
  if (file.filename() != kRecipeName || !has_result(run)) return;
  warn(fmt::format("{} has model={}, from which its run began; the result is {}", file.string(),
                   recipe.model, result_setting(run)));
}

// Whether something that was given without the name of an option is a model.
bool is_model(const fs::path& operand) {
  std::error_code unreachable;
  const bool is_gguf = operand.extension() == ".gguf";
  return fs::exists(is_gguf ? operand : operand / "config.json", unreachable);
}

// And whether it is data.
bool is_data(const fs::path& operand) {
  std::error_code unreachable;
  const bool is_config = operand.filename() == "config.json";  // a model's
  return is_data_file(operand) && !is_config && fs::exists(operand, unreachable);
}

}  // namespace

OptionSet program_options() {
  return run_options(method_tables());
}

Recipe read_arguments(Arguments arguments, size_t max_operands, const std::string& command) {
  const Subcommand* row = find_subcommand(command);
  std::vector<std::string> unread;  // of the command line
  const auto is_kept = [&](const OptionSet& options, const OptionValue& option) {
    if (row == nullptr || reads(*row, options, option)) return true;
    if (option.origin == kCommandLine) unread.emplace_back(option.spec.name);
    return row->writes_recipes;
  };
  Recipe recipe = read_recipe(arguments, method_tables(), is_kept);
  if (recipe.operands.size() > max_operands) {
    const std::string& operand = recipe.operands[max_operands];
    throw Error(
        ErrorKind::usage, fmt::format("{} does not know what to do with \"{}\"", command, operand),
        operand == "help"   ? fmt::format("jackscrew help {} shows its options", command)
        : is_model(operand) ? fmt::format("a model is given as model={}", shell_word(operand))
        : is_data(operand)
            ? fmt::format("data are given as data={}", shell_word(list_item(operand)))
        : is_recipe_name(operand)
            ? "there can be one recipe: write the settings of both into it"
            : "options are written name=value or --name value; a recipe ends in .yaml or .yml");
  }
  if (row != nullptr) refuse_dry_run(recipe, *row);
  for (const std::string& name : unread) {
    if (recipe.print_config || launched_rank() > 0) break;
    warn(fmt::format("{} does not use {}", command, name));
  }
  if (!recipe.left_out.empty() && launched_rank() <= 0) warn(recipe.left_out);
  if (row != nullptr && !recipe.print_config) warn_of_untrained(recipe, *row);
  recipe.python_environments = python_environments();
  return recipe;
}

int with_recipe(Arguments arguments, size_t max_operands, const std::string& command,
                const std::function<int(const Recipe&)>& run) {
  const Recipe recipe = read_arguments(arguments, max_operands, command);
  if (recipe.print_config) {
    // Of several adapters none has settings that the recipe could have.
    const bool takes = recipe.adapters.size() == 1;
    fmt::print("{}", given_yaml(takes ? with_adapter_options(recipe) : recipe));
    return 0;
  }
  return run(recipe);
}

int with_unbudgeted_recipe(Arguments arguments, size_t max_operands, const std::string& command,
                           const std::function<int(const Recipe&)>& run) {
  return without_budget_hint([&] { return with_recipe(arguments, max_operands, command, run); });
}

int report_error(const std::string& what, const std::string& hint, int exit_code) {
  std::fflush(stdout);
  const bool interrupted = exit_code == static_cast<int>(ErrorKind::interrupted);
  write_stderr(fmt::format("jackscrew: {}{}\n", interrupted ? "" : "error: ", one_line(what)));
  if (!hint.empty()) write_stderr(fmt::format("hint: {}\n", one_line(hint)));
  return exit_code;
}

void flush_output() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout) != 0) fail(ErrorKind::generic, kOutputLost);
}

void warn_of_unused(const Recipe& recipe, std::string_view command,
                    const std::vector<std::string>& names, std::string_view where) {
  for (const std::string& name : names) {
    if (recipe.options.at(name, command).origin != kCommandLine) continue;
    warn(fmt::format("{} does not use {}{}", command, name, where));
  }
}

void warn_of_weights(const Recipe& recipe) {
  const std::string& of_weights = recipe.options.origin("data_weights");
  if (recipe.data_weights.empty() || of_weights == kCommandLine) return;
  if (recipe.options.origin("data") != kCommandLine) return;
  std::vector<std::string> each;
  for (size_t i = 0; i < recipe.data.size(); ++i) {
    each.push_back(fmt::format("{} of {}", recipe.data_weights[i], recipe.data[i]));
  }
  warn(
      fmt::format("{}: data_weights are of the recipe's own data, and count for those of the "
                  "command line: {}",
                  of_weights, fmt::join(each, ", ")));
}

void check_output_file(const Recipe& recipe) {
  for (const std::string& source : sources_of(recipe)) refuse_temporary(source, recipe.output);
  require_temporary_name(recipe.output);
  std::error_code unknown;
  const fs::file_status status = fs::status(recipe.output, unknown);
  if (fs::exists(status) && !fs::is_regular_file(status)) {
    throw Error(ErrorKind::usage, fmt::format("{} is not a file", recipe.output),
                "give another output");
  }
  if (fs::exists(status) && !recipe.overwrite) {
    throw Error(ErrorKind::usage, fmt::format("{} exists already", recipe.output),
                "give another output, or overwrite=true to replace it");
  }
  const fs::path parent = fs::absolute(recipe.output).parent_path();
  if (!fs::is_directory(parent)) {
    throw Error(ErrorKind::usage, fmt::format("there is no directory {}", parent.string()),
                "make it, or give another output");
  }
  // It is written beside its place and renamed.
  if (::access(parent.c_str(), W_OK | X_OK) != 0) {
    throw Error(ErrorKind::usage,
                fmt::format("cannot write to {}: {}", parent.string(), std::strerror(errno)),
                "give another output");
  }
}

std::vector<std::string> options_of_texts(const OptionSet& options) {
  std::vector<std::string> names = {"max_samples", "excess_length_strategy"};
  for (const OptionValue& option : options.values()) {
    if (options.tables()[option.table].title == option_titles::kRecords) {
      names.emplace_back(option.spec.name);
    }
  }
  return names;
}

Recipe with_storage_of_files(Recipe recipe) {
  OptionSet& options = recipe.options;
  if (!is_storage_of_files(options)) {
    if (options.asks_for("storage")) {
      warn(
          fmt::format("{}: storage={} is of the run's memory; files take theirs from the command "
                      "line",
                      options.origin("storage"), recipe.storage));
    }
    options.forget("storage");
    recipe.storage = "keep";
  }
  if (recipe.format == "bnb") {
    const std::string origin = options.origin("format");
    // A recipe of all options has storage=keep where nobody asked for it.
    if (options.asks_for("storage") && recipe.storage != "nf4") {
      throw Error(ErrorKind::usage,
                  fmt::format("{}: format=bnb has storage=nf4, but {} says storage={}", origin,
                              options.origin("storage"), recipe.storage),
                  "leave storage out; or format=hf, which has other storages too");
    }
    options.set("format", "hf", origin);
    options.set("storage", "nf4", origin);
    recipe.format = "hf";
    recipe.storage = "nf4";
  }
  return recipe;
}

void require_weights(const Recipe& recipe, const ModelFiles& files) {
  if (recipe.random_init) return;
  if (files.source == nullptr) {
    throw Error(ErrorKind::usage, fmt::format("{} is a shape without weights", recipe.model),
                "give a model directory or a GGUF file, or init=random");
  }
  warn_of_unused_tensors(files);
}

namespace {

bool is_capable_terminal(int descriptor) {
  const char* terminal = std::getenv("TERM");
  const bool dumb = terminal == nullptr || std::string_view(terminal) == "dumb";
  // mpirun gives rank 0 a terminal of its own, wherever its output goes from there.
  return ::isatty(descriptor) == 1 && !dumb && launched_ranks() == 1;
}

// 0 where the width is unknown.
int columns(int descriptor) {
  winsize size{};
  return ::ioctl(descriptor, TIOCGWINSZ, &size) == 0 ? size.ws_col : 0;
}

bool allows_colour() {
  const char* no_colour = std::getenv("NO_COLOR");
  return no_colour == nullptr || *no_colour == '\0';
}

}  // namespace

std::vector<fs::path> python_environments() {
  std::vector<fs::path> out;
  for (const char* variable : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const char* environment = std::getenv(variable);
    if (environment != nullptr) out.emplace_back(environment);
  }
  return out;
}

bool stdout_colour() {
  return is_capable_terminal(STDOUT_FILENO) && allows_colour();
}

int stdout_width() {
  return is_capable_terminal(STDOUT_FILENO) ? columns(STDOUT_FILENO) : 0;
}

ProgressStyle stderr_style(bool quiet) {
  ProgressStyle style;
  style.quiet = quiet;
  style.is_terminal = is_capable_terminal(STDERR_FILENO);
  style.colour = style.is_terminal && allows_colour();
  if (const int width = columns(STDERR_FILENO); width > 0) style.width = width;
  return style;
}

}  // namespace jackscrew
