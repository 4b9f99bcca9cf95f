// Every file of tests/bad_input is one case of input that is not as it should be. Paths in it begin
// with {dir}.
//   files        written first: text, or JSON as it stands
//   first        settings of a run into out/ that succeeds
//   changed      files written after it
//   removed      files and directories that go then
//   command      train where it is not given
//   settings     added to those of TinyRun; they reach the shell as they are
//   environment  variables, as a shell has them
//   exit_code    of the program
//   says         words of its one line, or of the hint below; where exit_code is 0, there is no
//   warning
// out/ is afterwards as it was: not there, or what was in it.
#include "tests/cli/expect_refused.h"
#include "tests/support/paths.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

std::vector<std::string> case_names() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(kTestData) / "bad_input")) {
    names.push_back(entry.path().stem().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

class BadInputCases : public ::testing::TestWithParam<std::string> {
 protected:
  BadInputCases() : tiny_("bad_input_cases") {}

  std::string placed(std::string text) const {
    constexpr std::string_view kMark = "{dir}";
    const std::string directory = tiny_.path("").parent_path().string();
    for (size_t at = 0; (at = text.find(kMark, at)) != std::string::npos;) {
      text.replace(at, kMark.size(), directory);
    }
    return text;
  }
  void write(const json& files) const {
    for (const auto& [name, content] : files.items()) {
      fs::create_directories(tiny_.path(name).parent_path());
      tiny_.file(name, content.is_string() ? content.get<std::string>() : content.dump());
    }
  }

  TinyRun tiny_;
};

TEST_P(BadInputCases, EndsAsItShould) {
  const fs::path file = fs::path(kTestData) / "bad_input" / (GetParam() + ".json");
  const json given = json::parse(read_text(file));
  const auto text = [&](const char* key, const char* fallback = "") {
    return placed(given.value(key, fallback));
  };
  const fs::path output = tiny_.path("out");
  write(given.value("files", json::object()));
  if (given.contains("first")) tiny_.must_train("out", text("first"));
  write(given.value("changed", json::object()));
  for (const std::string name : given.value("removed", json::array())) {
    fs::remove_all(tiny_.path(name));
  }
  const bool was_there = fs::exists(output);
  const auto before = was_there ? contents(output) : std::map<std::string, std::string>();

  const std::string command = text("command", "train");
  const std::string arguments =
      command + " " +
      tiny_.settings((command == "train" ? "max_steps=2 output_dir=" + output.string() : "") + " " +
                     text("settings"));
  const Outcome outcome =
      run_shell("env " + text("environment") + " " + kProgram + " " + arguments + kErrorsOnly);
  if (given["exit_code"] == 0) {
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    // A slow machine sees how far the run is.
    EXPECT_EQ(outcome.out.find("warning"), std::string::npos) << outcome.out;
    return;
  }
  std::vector<std::string> says;
  for (const std::string words : given["says"]) says.push_back(placed(words));
  expect_refused(outcome, given["exit_code"], says);
  EXPECT_EQ(fs::exists(output), was_there);
  EXPECT_TRUE(!was_there || contents(output) == before);
}

INSTANTIATE_TEST_SUITE_P(Cases, BadInputCases, ::testing::ValuesIn(case_names()),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace jackscrew
