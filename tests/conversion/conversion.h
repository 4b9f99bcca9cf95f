// A trained model, and the commands that convert it and compare what comes of it.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "formats/safetensors.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {

class SlowConversion : public ::testing::Test {
 protected:
  SlowConversion() : tiny_("conversion") {
    // Dense enough gradients that every adapter changes its weight.
    tiny_.must_train("base", "method=full max_steps=2 learning_rate=1e-2");
  }

  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  void train_adapter(const std::string& name, const std::string& more = "") const {
    const Outcome outcome =
        run(fmt::format("train model={} data={} output_dir={} sequence_len=64 threads=1 "
                        "max_steps=3 learning_rate=2e-2 lora_rank=4 {} 2>&1",
                        path("base"), tiny_.data(), path(name), more));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
  }
  // Runs a command and returns what it prints as JSON.
  nlohmann::json answer(const std::string& arguments) const {
    const Outcome outcome = run(arguments + " threads=2 --quiet --json");
    EXPECT_EQ(outcome.exit_code, 0) << arguments << "\n" << outcome.out;
    return outcome.exit_code == 0 ? nlohmann::json::parse(outcome.out) : nlohmann::json();
  }
  double loss(const std::string& model) const {
    return answer(fmt::format("eval {} data={} sequence_len=64", model, tiny_.eval_data()))["loss"];
  }
  void expect_refusal(const std::string& arguments, int code,
                      const std::vector<std::string>& says) const {
    expect_refused(run(arguments + kErrorsOnly), code, says);
  }
  // Of two models in Hugging Face files, the second of which has an adapter of q_proj merged in and
  // keeps the rest in NF4.
  void expect_only_q_proj_differs(const std::string& before, const std::string& merged) const {
    const SafetensorsFile from(path(before) + "/model.safetensors");
    const SafetensorsFile to(path(merged) + "/model.safetensors");
    int64_t same = 0;
    for (const SafetensorsEntry& entry : to.entries()) {
      if (entry.name.find("q_proj") != std::string::npos) continue;
      EXPECT_TRUE(std::ranges::equal(entry.bytes, from.find(entry.name)->bytes)) << entry.name;
      ++same;
    }
    EXPECT_GE(same, 12 * 4);
  }
  std::string tiny_data() const {
    return fmt::format("tokenizer=bytes data={} sequence_len=64", tiny_.eval_data());
  }
  std::string eval() const {
    return fmt::format("eval_data={} sequence_len=64", tiny_.eval_data());
  }

  TinyRun tiny_;
};

}  // namespace jackscrew
