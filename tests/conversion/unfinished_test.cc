// Commands that write models, interrupted or on a small disk: what they leave is whole, or not
// there.
#include "base/clock.h"
#include "tests/conversion/quantise_rig.h"
#include "tests/support/small_disk.h"

namespace jackscrew {
namespace {

// A model large enough for its files to take a while.
class SlowUnfinished : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string config = tiny_.file("large.json", R"({
      "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 260,
      "hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 6,
      "num_attention_heads": 8, "num_key_value_heads": 8, "max_position_embeddings": 128,
      "tie_word_embeddings": false, "bos_token_id": 256, "eos_token_id": 257})");
    tiny_.must_train("base", "method=full max_steps=1 report_samples=0 model=" + config);
    tiny_.must_train(
        "tuned", "method=lora init=pretrained max_steps=1 report_samples=0 model=" + path("base"));
  }
  std::string path(const std::string& name) const { return tiny_.path(name).string(); }
  // The commands by name, each with where it writes left open.
  std::map<std::string, std::string> commands() const {
    return {
        {"merge", fmt::format("merge model={} adapter={} storage=f32 threads=1 output_dir=",
                              path("base"), path("tuned"))},
        {"export", fmt::format("export model={} format=gguf threads=1 output=", path("base"))},
        {"quantize",
         fmt::format("quantize model={} data={} format=gptq bits=4 group_size=32 sequence_len=64 "
                     "calibration_sequences=16 threads=1 output_dir=",
                     path("base"), tiny_.data())},
        {"quantize_gguf",
         fmt::format("quantize model={} data={} format=gguf storage=q4_k_m sequence_len=64 "
                     "calibration_sequences=16 threads=1 output_dir=",
                     path("base"), tiny_.data())},
    };
  }
  // The bytes of what a command has written: a file, or the files of a directory.
  static std::map<std::string, std::string> written(const fs::path& output) {
    if (fs::is_directory(output)) return contents(output);
    return {{"", read_text(output)}};
  }

  const TinyRun tiny_{"unfinished"};
};

TEST_F(SlowUnfinished, InterruptedAtAnyMoment) {
  for (const auto& [name, command] : commands()) {
    SCOPED_TRACE(name);
    const std::string whole = path(name);
    const Stopwatch watch;
    const Outcome outcome = run(command + whole + " --quiet 2>&1");
    double seconds = watch.seconds();
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
    const auto want = written(whole);
    int interrupted = 0;
    constexpr int kMoments = 12, kMost = 5 * kMoments;
    for (int i = 0; i < kMost && (i < kMoments || interrupted < 3); ++i) {
      const fs::path output = path(fmt::format("{}_{}", name, i));
      Child child(command + output.string() + " --quiet", tiny_.path("said"));
      std::this_thread::sleep_for(
          std::chrono::duration<double>(seconds * (i % kMoments + 0.5) / kMoments));
      const int signal = i % 2 == 0 ? SIGINT : SIGHUP;
      const int code = child.stop(signal);
      if (code == 0) {
        EXPECT_TRUE(written(output) == want) << i;
        seconds /= 2;  // the first run may have been slower than all others
        continue;
      }
      ++interrupted;
      // Before a handler is there the signal itself ends it.
      EXPECT_TRUE(code == 130 || code == -signal) << code << "\n" << tiny_.text("said");
      EXPECT_FALSE(fs::exists(output)) << i;
    }
    EXPECT_GE(interrupted, 3);
  }
}

// GNU timeout sends one to the process and one to its group.
TEST_F(SlowUnfinished, OneRequestThatComesTwiceIsOne) {
  for (const auto& [name, command] : commands()) {
    SCOPED_TRACE(name);
    const fs::path output = path(name);
    Child child(command + output.string() + " --quiet", tiny_.path("said"));
    ASSERT_TRUE(child.waits_for_signals());
    child.signal_repeatedly(SIGTERM, 3);
    EXPECT_EQ(child.wait(), 130);
    EXPECT_NE(tiny_.text("said").find("interrupted"), std::string::npos) << tiny_.text("said");
    EXPECT_FALSE(fs::exists(output));
    EXPECT_FALSE(fs::exists(output.string() + ".jackscrew-part"));
  }
}

TEST_F(SlowUnfinished, NohupKeepsThemFromEndingWithTheirTerminal) {
  for (const auto& [name, command] : commands()) {
    SCOPED_TRACE(name);
    Child child(command + path(name) + " --quiet", tiny_.path("said"), "nohup");
    ASSERT_TRUE(child.waits_for_signals());
    EXPECT_EQ(child.stop(SIGHUP), 0) << tiny_.text("said");
    EXPECT_TRUE(fs::exists(path(name)));
  }
}

// As a script's `command &` does with SIGINT.
TEST_F(SlowUnfinished, WhatTheyWereStartedToIgnoreEndsNone) {
  for (const auto& [name, command] : commands()) {
    SCOPED_TRACE(name);
    Child child(command + path(name) + " --quiet", tiny_.path("said"),
                R"(sh -c 'trap "" INT TERM; exec "$@"' sh)");
    ASSERT_TRUE(child.waits_for_signals());
    child.signal(SIGINT);
    EXPECT_EQ(child.stop(SIGTERM), 0) << tiny_.text("said");
    EXPECT_TRUE(fs::exists(path(name)));
  }
}

// They know how much they will write.
TEST_F(SlowUnfinished, OnASmallDisk) {
  const fs::path disk = tiny_.path("disk");
  const SmallDisk mounted(disk, "4m");
  SKIP_UNLESS_MOUNTED(mounted);
  for (const auto& [name, command] : commands()) {
    SCOPED_TRACE(name);
    const Outcome outcome = run(command + (disk / "model").string() + " --quiet 2>&1");
    EXPECT_EQ(outcome.exit_code, 1) << outcome.out;
    EXPECT_NE(outcome.out.find("only 4.0 MiB is free on its disk"), std::string::npos)
        << outcome.out;
    EXPECT_TRUE(fs::is_empty(disk)) << fs::directory_iterator(disk)->path();
  }
}

}  // namespace
}  // namespace jackscrew
