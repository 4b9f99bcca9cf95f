// The program where its standard streams are closed, full, or read by somebody who goes.
#include <fmt/format.h>

#include <cctype>
#include <fstream>
#include <string_view>

#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

TEST(Streams, WhatIsLostIsAnExitCodeAndNoAbort) {
  const std::pair<const char*, int> cases[] = {
      {"--version >&- 2>&-", 1},
      {"--version >/dev/full 2>/dev/full", 1},
      {"--version <&- >/dev/null 2>&-", 0},
      {"doctor <&- >&- 2>&-", 1},
      {"no_such_command 2>&-", 2},
      {"no_such_command 2>/dev/full", 2},
      {"inspect no_such_file 2>/dev/full", 5},
      {"plan model=llama-60m init=random device_memory=1MiB >/dev/null 2>/dev/full", 3},
      {"2>/dev/full", 2},
  };
  for (const auto& [arguments, expected] : cases) {
    EXPECT_EQ(run(arguments).exit_code, expected) << arguments;
  }
}

TEST(SlowStreams, OfARunAreNoPartOfItsResult) {
  const TinyRun tiny("streams");
  const std::string settings =
      "max_steps=8 learning_rate=1e-3 save_steps=4 eval_data=" + tiny.eval_data() + " ";
  tiny.must_train("whole", settings);
  const std::string model = tiny.text("whole/adapter_model.safetensors");
  const std::pair<const char*, const char*> cases[] = {
      {"closed", "<&- >&- 2>&-"},
      {"no_stdin", "<&- >/dev/null 2>/dev/null"},
      {"no_stdout", ">&-"},
      {"no_stderr", "2>&-"},
      {"full", ">/dev/full 2>/dev/full"},
      {"full_stderr", ">/dev/null 2>/dev/full"},
  };
  for (const auto& [name, redirection] : cases) {
    EXPECT_EQ(run(tiny.train(name, settings) + " " + redirection).exit_code, 0) << redirection;
    EXPECT_TRUE(tiny.text(std::string(name) + "/adapter_model.safetensors") == model) << name;
    // Every line is an event: nothing else was written there.
    EXPECT_EQ(tiny.losses(name), tiny.losses("whole")) << name;
    EXPECT_EQ(tiny.text(std::string(name) + "/recipe.yaml").find("step "), std::string::npos);
  }
}

TEST(SlowStreams, AReaderThatGoesEndsNoRun) {
  const TinyRun tiny("reader");
  const std::string code = tiny.path("code").string();
  for (int repetition = 0; repetition < 3; ++repetition) {
    run_shell(fmt::format("({} {} 2>&1; echo $? > {}) | head -6", kProgram,
                          tiny.train("out", "max_steps=30 resume=never save_steps=10"), code));
    EXPECT_EQ(tiny.text("code"), "0\n");
    EXPECT_EQ(tiny.losses("out").size(), 30u);
  }
}

// The figure of a step that is looked for is stressed on a terminal, unless it cannot or is told
// not to (no-color.org).
TEST(SlowStreams, ColoursAreForTerminalsThatWantThem) {
  const TinyRun tiny("colours");
  const std::string train = tiny.train("out", "max_steps=1 overwrite=true");
  const std::pair<const char*, bool> cases[] = {{"TERM=xterm", true},
                                                {"TERM=xterm NO_COLOR=", true},
                                                {"TERM=xterm NO_COLOR=1", false},
                                                {"TERM=dumb", false},
                                                {"-u TERM", false}};
  for (const auto& [environment, coloured] : cases) {
    const Outcome outcome =
        run_shell(fmt::format("env -u NO_COLOR {} script -qec '{} {}' /dev/null </dev/null",
                              environment, kProgram, train));
    EXPECT_EQ(outcome.exit_code, 0) << environment;
    EXPECT_EQ(outcome.out.find("\x1b[") != std::string::npos, coloured) << environment;
  }
}

// U+202E turns the direction of what follows: "gpj.exe" reads "exe.jpg".
TEST(Streams, NoNameTurnsALineAround) {
  const std::string name = "a\u202Eb\u009Bc";
  for (const std::string& arguments :
       {"inspect '" + name + "'", "report '" + name + "'", "train '" + name + "=1'",
        "plan model='" + name + "'", "'" + name + "'", "config validate '" + name + ".yaml'"}) {
    const Outcome refused = run(arguments + kErrorsOnly);
    EXPECT_NE(refused.exit_code, 0);
    EXPECT_NE(refused.out.find("a\\u202eb\\u009bc"), std::string::npos) << refused.out;
    EXPECT_EQ(refused.out.find("\u202E"), std::string::npos) << refused.out;
  }
}

TEST(SlowStreams, NoTextTurnsTheReportAround) {
  const TinyRun tiny("direction");
  const std::string data =
      tiny.file("a\u202Eb.jsonl", TinyRun::record("Say \u202Ethis", "It \u2066is\u200F so"));
  const Outcome run_of = run(tiny.train("out", "max_steps=1 data='" + data + "'") + " 2>&1");
  EXPECT_EQ(run_of.exit_code, 0) << run_of.out;
  EXPECT_NE(run_of.out.find("a\\u202eb.jsonl"), std::string::npos) << run_of.out;
  const std::string report = tiny.text("out/report.html");
  EXPECT_NE(report.find("Say \uFFFDthis"), std::string::npos);
  for (const std::string& text : {run_of.out, report}) {
    for (const char* unseen : {"\u202E", "\u2066", "\u200F"}) {
      EXPECT_EQ(text.find(unseen), std::string::npos);
    }
  }
}

// A line of code without its comment and without what is in quotes.
std::string bare(const std::string& line) {
  std::string code;
  bool quoted = false;
  for (size_t i = 0; i < line.size(); ++i) {
    if (!quoted && line.compare(i, 2, "//") == 0) break;
    if (line[i] == '"') quoted = !quoted;
    if (quoted && line[i] == '\\') {
      ++i;
    } else if (!quoted) {
      code += line[i];
    }
  }
  return code;
}

bool has_word(const std::string& code, std::string_view word) {
  const auto in_word = [&](size_t i) {
    return i < code.size() && (std::isalnum(static_cast<unsigned char>(code[i])) || code[i] == '_');
  };
  for (size_t at = 0; (at = code.find(word, at)) != code.npos; ++at) {
    if ((at == 0 || !in_word(at - 1)) && !in_word(at + word.size())) return true;
  }
  return false;
}

// A stream that cannot be written makes fmt::print throw, where nobody may be there to catch.
TEST(Sources, WriteToStderrInOnePlace) {
  int files = 0;
  for (const auto& entry : fs::recursive_directory_iterator(source_root() / "src")) {
    const fs::path& path = entry.path();
    if (!entry.is_regular_file() || path.stem() == "console") continue;
    ++files;
    std::ifstream source(path);
    int number = 0;
    for (std::string line; std::getline(source, line);) {
      ++number;
      const std::string code = bare(line);
      const bool writes = has_word(code, "stderr") || has_word(code, "perror") ||
                          code.find("write(STDERR_FILENO") != code.npos;
      EXPECT_FALSE(writes) << path.string() << ":" << number << ": " << line;
    }
  }
  EXPECT_GT(files, 100);
}

}  // namespace
}  // namespace jackscrew
