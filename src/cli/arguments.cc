#include "cli/arguments.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <set>
#include <string_view>
#include <vector>

#include "base/console.h"
#include "base/error.h"
#include "base/text.h"
#include "cli/launch.h"
#include "recipe/recipe_text.h"
#include "session/adapter.h"

namespace jackscrew {

namespace {

const std::string& title_of(const Recipe& recipe, const OptionValue& option) {
  return recipe.options.tables()[option.table].title;
}

// Whether an option decides what others are, so that it means something to every command.
bool decides_others(std::string_view name) {
  return name == "method" || name == "learner";
}

// Options of learners and products that are not chosen are not looked at: read_recipe() refuses
// them. Those of a learner mean something where it learns, and where an adapter is used that it
// made.
void warn_of_options_of_other_commands(const Recipe& recipe, const Subcommand& command) {
  std::set<std::string> skipped;
  for (const MethodTable& table : method_tables()) {
    const OptionValue& choice = recipe.options.at(table.choice, command.name);
    const bool adapts = table.choice == std::string_view("learner") && !recipe.adapters.empty();
    if (adapts || command.uses(choice.spec, title_of(recipe, choice))) {
      skipped.insert(method_title(table));
    }
  }
  for (const OptionValue& option : recipe.options.values()) {
    const std::string& title = title_of(recipe, option);
    if (option.origin != kCommandLine || skipped.contains(title)) continue;
    if (decides_others(option.spec.name) || command.uses(option.spec, title)) continue;
    warn(fmt::format("{} does not use {}", command.name, option.spec.name));
  }
}

// Such a command would do what it was asked only to show.
void refuse_dry_run(const Recipe& recipe, const std::string& command) {
  const OptionValue& dry_run = recipe.options.at("dry_run", command);
  const Subcommand* row = find_subcommand(command);
  if (row == nullptr || row->uses(dry_run.spec, title_of(recipe, dry_run))) return;
  if (!recipe.options.boolean("dry_run")) return;
  throw Error(
      ErrorKind::usage, fmt::format("{}: {} has no dry run", dry_run.origin, command),
      "leave dry_run out; quantize has it, and `jackscrew plan` shows what train would take");
}

}  // namespace

OptionSet program_options() {
  return run_options(method_tables());
}

Recipe read_arguments(Arguments arguments, size_t max_operands, const std::string& command) {
  Recipe recipe = read_recipe(arguments, method_tables());
  if (recipe.operands.size() > max_operands) {
    const std::string& operand = recipe.operands[max_operands];
    throw Error(ErrorKind::usage,
                fmt::format("{} does not know what to do with \"{}\"", command, operand),
                operand == "help" ? fmt::format("jackscrew help {} shows its options", command)
                : operand.ends_with(".yaml")
                    ? "there can be one recipe: write the settings of both into it"
                    : "options are written name=value or --name value; a recipe ends in .yaml");
  }
  refuse_dry_run(recipe, command);
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
  if (const Subcommand* row = find_subcommand(command)) {
    warn_of_options_of_other_commands(recipe, *row);
  }
  return run(recipe);
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
                    std::initializer_list<std::string_view> names) {
  const Subcommand* row = find_subcommand(command);
  for (const std::string_view name : names) {
    const OptionValue& option = recipe.options.at(name, command);
    const bool told = row != nullptr && !row->uses(option.spec, title_of(recipe, option));
    if (option.origin == kCommandLine && !told) {
      warn(fmt::format("{} does not use {}", command, name));
    }
  }
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
