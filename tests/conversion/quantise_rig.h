// A tiny trained model, quantised as users do it.
#pragma once

#include <gtest/gtest.h>

#include <fmt/format.h>

#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {

class QuantiseRig : public ::testing::Test {
 protected:
  using json = nlohmann::json;

  // `settings` are those of all its commands, beside the few tokens that it calibrates on.
  QuantiseRig(const char* name, std::string settings)
      : tiny_(name), settings_(std::move(settings)) {}

  void train_base(const std::string& more = "") const {
    tiny_.must_train("base", "method=full max_steps=4 learning_rate=1e-2 " + more);
  }
  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  std::string quantise(const std::string& output, const std::string& more = "") const {
    return fmt::format(
        "quantize model={} data={} output_dir={} sequence_len=64 calibration_sequences=8 threads=2 "
        "{} {}",
        path("base"), tiny_.data(), path(output), settings_, more);
  }
  json answer(const std::string& arguments) const {
    const Outcome outcome = run(arguments + " --quiet --json");
    EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.out;
    return outcome.exit_code == 0 ? json::parse(outcome.out) : json();
  }
  double loss(const std::string& model) const {
    return answer(fmt::format("eval model={} data={} sequence_len=64", path(model),
                              tiny_.eval_data()))["loss"];
  }
  // That what was written to `output` is as good and as large as the command said.
  void expect_as_said(const std::string& output, const json& said) const {
    EXPECT_NEAR(said["loss"], loss(output), 1e-6);
    int64_t bytes = 0;
    for (const auto& [name, text] : contents(path(output))) bytes += std::ssize(text);
    EXPECT_EQ(said["bytes"], bytes);
  }
  void expect_same_bytes_with_any_threads(const std::string& more) const {
    answer(quantise("one", more + " threads=1"));
    answer(quantise("two", more + " threads=2"));
    answer(quantise("again", more + " threads=2"));
    EXPECT_EQ(contents(path("one")), contents(path("two")));
    EXPECT_EQ(contents(path("one")), contents(path("again")));
  }
  // That a dry run says how much memory the command will have taken.
  void expect_memory_as_planned(const std::string& more) const {
    SCOPED_TRACE(more);
    const json dry = answer(quantise("planned", more + " overwrite=true --dry-run"));
    const json real = answer(quantise("planned", more + " overwrite=true"));
    EXPECT_EQ(dry["memory"], real["memory"]);
    EXPECT_GT(real["memory"].get<int64_t>(), 0);
  }
  // That the command ends so, and leaves nothing.
  void refused(const std::string& more, int code, const std::vector<std::string>& says) const {
    expect_refused(run(quantise("refused", more) + " --quiet" + kErrorsOnly), code, says);
    EXPECT_FALSE(fs::exists(path("refused")));
  }
  // That a dry run counts so many matrices, and writes nothing.
  void expect_dry_run(const std::string& more, const std::string& matrices) const {
    const Outcome dry = run(quantise("dry", more + " --dry-run"));
    EXPECT_EQ(dry.exit_code, 0);
    EXPECT_NE(dry.out.find(matrices), std::string::npos) << dry.out;
    EXPECT_FALSE(fs::exists(path("dry")));
  }

  TinyRun tiny_;

 private:
  std::string settings_;
};

}  // namespace jackscrew
