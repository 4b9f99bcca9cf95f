// What docs/ and recipes/ say about the command line, held against the program.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include <string>

#include "base/text.h"
#include "cli/arguments.h"
#include "learners/learner.h"
#include "recipe/run_options.h"
#include "report/event_log.h"
#include "tests/cli/run_program.h"

namespace jackscrew {
namespace {

// The row of an option in docs/cli.md.
std::string option_row(const OptionValue& option) {
  std::string aliases;
  for (const std::string& alias : split_words(option.spec.aliases)) {
    aliases += fmt::format("{}`{}`", aliases.empty() ? "" : " ", alias);
  }
  const std::string value = option.text.empty() ? "" : fmt::format("`{}`", option.text);
  return fmt::format("| `{}` | {} | {} | {} |\n", option.spec.name, value, option.spec.help,
                     aliases);
}

class CliDocs : public testing::Test {
 protected:
  void expect(const std::string& line) const {
    EXPECT_NE(text_.find(line), std::string::npos) << "docs/cli.md lacks this line:\n" << line;
  }

  const std::string text_ = read_text(source_root() / "docs" / "cli.md");
};

TEST_F(CliDocs, HasEveryOptionWithDefaultHelpAndAliases) {
  const OptionSet options = program_options();
  for (const OptionValue& option : options.values()) expect(option_row(option));
  for (const OptionTable& table : options.tables()) {
    if (!table.options.empty()) expect("### " + table.title + "\n");
  }
}

TEST_F(CliDocs, HasEveryMethodAndLearner) {
  for (const Preset& preset : presets()) {
    expect(fmt::format("| `{}` | {} | `{}` |\n", preset.name, preset.help, preset.settings));
  }
  for (const LearnerEntry& learner : all_learners()) {
    expect(fmt::format("| `{}` | {} |\n", learner.name, learner.help));
  }
}

TEST_F(CliDocs, HasEveryCommandThatHelpLists) {
  const std::string help = run("--help").out;
  const std::string heading = "\nCommands\n";
  const size_t begin = help.find(heading);
  ASSERT_NE(begin, std::string::npos);
  int commands = 0;
  for (const std::string& line : split(help.substr(begin + heading.size()), '\n')) {
    if (!line.starts_with("  ")) break;
    const std::string name = line.substr(2, line.find(' ', 2) - 2);
    const std::string summary = line.substr(line.find_first_not_of(' ', 2 + name.size()));
    if (name != "help") expect(fmt::format("| `{}` | {} |", name, summary));
    ++commands;
  }
  EXPECT_GE(commands, 9);
}

TEST_F(CliDocs, HasEveryEventOfTheLog) {
  for (const EventKind kind : {EventKind::start, EventKind::step, EventKind::eval, EventKind::save,
                               EventKind::warn, EventKind::end, EventKind::memory,
                               EventKind::booked, EventKind::sample, EventKind::exported}) {
    expect(fmt::format("| `{}` |", event_name(kind)));
  }
  for (const char* other : {"rotate", "refresh", "rank"}) expect(fmt::format("| `{}` |", other));
}

TEST_F(CliDocs, HasEveryExitCode) {
  for (const ErrorKind kind :
       {ErrorKind::generic, ErrorKind::usage, ErrorKind::does_not_fit, ErrorKind::data,
        ErrorKind::model, ErrorKind::non_finite, ErrorKind::device, ErrorKind::interrupted}) {
    expect(fmt::format("| {} |", static_cast<int>(kind)));
  }
}

TEST_F(CliDocs, ExitCodesNameTheOptionsThatEndSo) {
  const std::string mark = "(exit code ";
  int ends = 0;
  for (const OptionSet options = program_options(); const OptionValue& option : options.values()) {
    const std::string help = option.spec.help;
    const size_t at = help.find(mark);
    if (at == std::string::npos) continue;
    ++ends;
    const size_t code = at + mark.size();
    const std::string row = "\n| " + help.substr(code, help.find(')', code) - code) + " | ";
    const size_t begin = text_.find(row);
    ASSERT_NE(begin, std::string::npos) << row;
    EXPECT_NE(text_.substr(begin, text_.find('\n', begin + 1) - begin).find(option.spec.name),
              std::string::npos)
        << row << option.spec.name;
    EXPECT_NE(run("--help").out.find(option.spec.name), std::string::npos);
  }
  EXPECT_GE(ends, 1);
}

TEST(Recipes, AreValidAndThereIsOneForEveryMethod) {
  for (const Preset& preset : presets()) {
    const fs::path file = source_root() / "recipes" / (std::string(preset.name) + ".yaml");
    ASSERT_TRUE(fs::exists(file)) << file;
    EXPECT_NE(read_text(file).find(fmt::format("method: {}\n", preset.name)), std::string::npos);
  }
  for (const auto& entry : fs::directory_iterator(source_root() / "recipes")) {
    const auto validate = [&](const std::string& more) {
      const Outcome outcome = run("config validate " + entry.path().string() + more + " 2>&1");
      EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    };
    validate("");
    // The line of its head that shows how a setting is overridden.
    const std::string text = read_text(entry.path());
    const std::string command =
        "command line: jackscrew train recipes/" + entry.path().filename().string();
    const size_t begin = text.find(command);
    ASSERT_NE(begin, std::string::npos) << entry.path();
    const size_t settings = begin + command.size();
    validate(text.substr(settings, text.find('\n', settings) - settings));
  }
}

}  // namespace
}  // namespace jackscrew
