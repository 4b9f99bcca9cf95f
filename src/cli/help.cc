#include "cli/help.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "base/text.h"
#include "cli/arguments.h"

namespace jackscrew {

namespace {

constexpr size_t kHelpColumn = 32;
constexpr size_t kColumns = 100;

// `text` wrapped at spaces; every line but the first is indented to the help column.
std::string wrapped(const std::string& text) {
  std::string out;
  size_t line = 0;
  for (const std::string& word : split(text, ' ')) {
    if (line != 0 && line + 1 + word.size() > kColumns - kHelpColumn) {
      out += "\n" + std::string(kHelpColumn, ' ');
      line = 0;
    } else if (line != 0) {
      out += ' ';
      ++line;
    }
    out += word;
    line += word.size();
  }
  return out;
}

std::string option_help(const OptionValue& option) {
  const OptionSpec& spec = option.spec;
  std::string text = spec.help;
  if (!option.text.empty()) text += fmt::format(" [{}]", option.text);
  if (*spec.aliases != '\0') {
    text += fmt::format(" (also {})", fmt::join(split_words(spec.aliases), ", "));
  }
  return fmt::format("  {:<{}}{}\n", spec.name, kHelpColumn - 2, wrapped(text));
}

std::string presets_help() {
  std::string out = "\nMethods\n";
  for (const Preset& preset : presets()) {
    out += fmt::format("  {:<{}}{}\n", preset.name, kHelpColumn - 2,
                       wrapped(fmt::format("{}: {}", preset.help, preset.settings)));
  }
  return out;
}

// Whether a command's help shows an option of a table: those that it lists and, if it shows the
// method, those of every learner and product.
bool shows(const Subcommand& command, const OptionSpec& option, const std::string& title) {
  if (command.shows(option, title)) return true;
  const auto methods = method_tables();
  return std::ranges::find(command.tables, option_titles::kMethod) != command.tables.end() &&
         std::ranges::any_of(
             methods, [&](const MethodTable& method) { return method_title(method) == title; });
}

}  // namespace

std::string program_help(std::span<const Subcommand> commands) {
  std::string out =
      "jackscrew trains and fine-tunes Llama-family models with little memory.\n\n"
      "Examples\n";
  for (const Subcommand& command : commands) {
    if (!command.hidden && !command.examples.empty()) out += "  " + command.examples.front() + "\n";
  }
  out += "\nCommands\n";
  for (const Subcommand& command : commands) {
    if (!command.hidden) out += fmt::format("  {:<12}{}\n", command.name, command.summary);
  }
  out += fmt::format("  {:<12}{}\n", "help", "explain a command and its options");
  return out +
         "\n`jackscrew help COMMAND` lists a command's options; `jackscrew --version` shows how it "
         "was built.\nExit codes: 0 done, 1 other errors, 2 usage, 3 does not fit into memory, 4 "
         "data, 5 model files,\n6 NaN, infinity or a loss above loss_watchdog_threshold, 7 device, "
         "130 interrupted.\n";
}

std::string command_help(const Subcommand& command) {
  std::string out = fmt::format("jackscrew {}: {}\n\nExamples\n", command.name, command.summary);
  for (const std::string& example : command.examples) out += "  " + example + "\n";
  out += fmt::format("\nUsage\n  jackscrew {} {}\n", command.name, command.usage);
  for (const std::string& word : command.words) out += "  " + word + "\n";
  if (command.tables.empty() && command.options.empty()) return out;
  out +=
      "\nOptions are written name=value, --name value or --name=value; - and _ are the same. They "
      "override\nthe recipe file, and a later one an earlier one. Defaults are in brackets.\n";
  const OptionSet options = program_options();
  for (size_t table = 0; table < options.tables().size(); ++table) {
    const std::string& title = options.tables()[table].title;
    std::string lines;
    for (const OptionValue& option : options.values()) {
      if (option.table == table && shows(command, option.spec, title)) lines += option_help(option);
    }
    if (!lines.empty()) out += fmt::format("\n{}\n{}", title, lines);
    const auto& whole = command.tables;
    if (title == option_titles::kMethod && std::ranges::find(whole, title) != whole.end()) {
      out += presets_help();
    }
  }
  return out;
}

std::vector<std::string> commands_with(std::string_view option) {
  const OptionSet options = program_options();
  const OptionValue* known = options.find(option);
  std::vector<std::string> names;
  if (known == nullptr) return names;
  for (const Subcommand& command : command_table()) {
    const std::string& title = options.tables()[known->table].title;
    if (!command.hidden && shows(command, known->spec, title)) names.push_back(command.name);
  }
  return names;
}

std::string version_text() {
  std::string compiler = fmt::format("GCC {}", __VERSION__);
#if defined(__clang__)
  compiler = __VERSION__;
#endif
#if defined(NDEBUG)
  const char* checks = "off";
#else
  const char* checks = "on";
#endif
  return fmt::format(
      "jackscrew {}\ncompiler: {}, debug checks {}\n"
      "CPU code: x86-64-v3 and x86-64-v4, chosen at run time\n",
      JACKSCREW_VERSION, compiler, checks);
}

}  // namespace jackscrew
