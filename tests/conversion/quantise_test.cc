// quantize as users call it.
#include <gtest/gtest.h>

#include <fmt/format.h>

#include "conversion/calibration.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

using nlohmann::json;

class SlowQuantise : public ::testing::Test {
 protected:
  SlowQuantise() : tiny_("quantise") {
    tiny_.must_train("base", "method=full max_steps=4 learning_rate=1e-2");
  }

  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  std::string quantise(const std::string& output, const std::string& more) const {
    return fmt::format(
        "quantize model={} data={} output_dir={} sequence_len=64 "
        "calibration_sequences=8 group_size=32 threads=2 {}",
        path("base"), tiny_.data(), path(output), more);
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

  TinyRun tiny_;
};

TEST_F(SlowQuantise, WritesWhatItSays) {
  for (const std::string more : {"bits=4", "bits=4 desc_act=true sym=false group_size=32",
                                 "bits=2 group_size=16", "bits=8 group_size=-1 desc_act=true"}) {
    SCOPED_TRACE(more);
    const json said =
        answer(quantise("q", more + " overwrite=true eval_data=" + tiny_.eval_data()));
    EXPECT_EQ(said["matrices"].size(), 14u);
    for (const json& matrix : said["matrices"]) EXPECT_LT(matrix["error"], 0.3) << matrix;
    EXPECT_EQ(said["calibration_tokens"], 512);
    EXPECT_NEAR(said["loss"], loss("q"), 1e-6);
    EXPECT_NEAR(said["reference_loss"], loss("base"), 1e-6);
    int64_t bytes = 0;
    for (const auto& [name, text] : contents(path("q"))) bytes += std::ssize(text);
    EXPECT_EQ(said["bytes"], bytes);
    const json config = json::parse(tiny_.text("q/config.json"));
    EXPECT_EQ(config["quantization_config"]["quant_method"], "gptq");
  }
  // Eight bits are almost exact.
  EXPECT_NEAR(loss("q"), loss("base"), 1e-2);
}

TEST_F(SlowQuantise, SameBytesWithAnyThreads) {
  const std::string more = "bits=4 desc_act=true sym=false ";
  answer(quantise("one", more + "threads=1"));
  answer(quantise("two", more + "threads=2"));
  answer(quantise("again", more + "threads=2"));
  EXPECT_EQ(contents(path("one")), contents(path("two")));
  EXPECT_EQ(contents(path("one")), contents(path("again")));
}

TEST_F(SlowQuantise, LosesLessThanTheNearest) {
  const json rounded = answer(quantise("g", "bits=2")),
             nearest = answer(quantise("n", "bits=2 rounding=nearest"));
  double with = 0.0, without = 0.0;
  for (size_t i = 0; i < rounded["matrices"].size(); ++i) {
    with += rounded["matrices"][i]["error"].get<double>();
    without += nearest["matrices"][i]["error"].get<double>();
  }
  EXPECT_LT(with, 0.8 * without);
}

TEST_F(SlowQuantise, ReadsWhatItWrote) {
  answer(quantise("g", "bits=4"));
  tiny_.must_train("tuned", "init=pretrained method=lora max_steps=1 model=" + path("g"));
  // Quantised models can be quantised again.
  const Outcome outcome = run(fmt::format(
      "quantize model={} data={} output_dir={} sequence_len=64 group_size=32 bits=8 --quiet",
      path("g"), tiny_.data(), path("again")));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_NE(outcome.out.find("bits a weight"), std::string::npos) << outcome.out;
}

TEST_F(SlowQuantise, Refusals) {
  const auto refused = [&](const std::string& more, int code,
                           const std::vector<std::string>& says) {
    expect_refused(run(quantise("q", more) + " --quiet" + kErrorsOnly), code, says);
    EXPECT_FALSE(fs::exists(path("q")));
  };
  refused("bits=5", 2, {"5 bits", "bits=2, 3, 4 or 8"});
  refused("bits=4.5", 2, {"4.5 bits", "format=exl2"});
  refused("head_bits=4", 2, {"head_bits", "format=exl2"});
  refused("group_size=48", 2, {"group_size=48", "power of two"});
  refused("format=gguf", 2, {"does not write format=gguf"});
  refused("product=int8", 2, {"product=int8", "product=f32"});
  refused("storage=q4_k", 2, {"storage=q4_k"});
  refused("data= ", 2, {"data"});
  refused("data=" + tiny_.file("short.jsonl", TinyRun::record("a", "b")), 4,
          {"too few", "at least 64"});
  refused("model=llama-9m tokenizer=bytes", 2, {"without weights"});
  expect_refused(
      run(fmt::format("export model={} output_dir={} format=gptq", path("base"), path("q")) +
          kErrorsOnly),
      2, {"format=gptq", "jackscrew quantize"});
  fs::create_directories(path("q"));
  write_text_atomic(path("q") + "/notes.txt", "mine");
  expect_refused(run(quantise("q", "--quiet") + kErrorsOnly), 2, {"exists already"});
  const Outcome dry = run(quantise("d", "--dry-run"));
  EXPECT_EQ(dry.exit_code, 0);
  EXPECT_NE(dry.out.find("14 matrices"), std::string::npos) << dry.out;
  EXPECT_FALSE(fs::exists(path("d")));
}

TEST(CalibrationText, IsSpreadOverTheData) {
  std::vector<Example> examples;
  for (int32_t i = 0; i < 25; ++i) {
    examples.push_back({{4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3}, {1, 1, 1, 1}});
  }
  const Dataset data(std::move(examples), 4);
  const CalibrationText text = calibration_text(data, 3, 10, 30);
  ASSERT_EQ(text.tokens(), 30);
  EXPECT_EQ(text.ids[0], 0);
  EXPECT_EQ(text.ids[9], 9);
  EXPECT_EQ(text.ids[10], 30);
  EXPECT_EQ(text.ids[20], 60);
  EXPECT_EQ(calibration_text(data, 50, 10, 100).sequences, 10);
  expect_message(ErrorKind::data, "too few", [&] { calibration_text(data, 3, 10, 31); });
}

}  // namespace
}  // namespace jackscrew
