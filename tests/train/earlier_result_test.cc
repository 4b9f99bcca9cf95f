// What a run finds in its output_dir that was killed as it began or ended, through the program.
#include <fmt/format.h>

#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

constexpr const char* kLonger =
    "method=full save_steps=2 lr_scheduler_type=constant warmup_steps=0 max_steps=";

// The longer run has written its recipe over that of the finished one, and nothing to the log.
void begin_longer(const TinyRun& tiny) {
  tiny.must_train("out", kLonger + std::string("2"));
  std::string recipe = tiny.text("out/recipe.yaml");
  const std::string steps = "\nmax_steps: 2";
  recipe.replace(recipe.find(steps), steps.size(), "\nmax_steps: 4");
  tiny.file("out/recipe.yaml", recipe);
}

TEST(SlowEarlierResult, ALongerRunKilledAsItBeganIsNotFinished) {
  const TinyRun tiny("longer_begun");
  tiny.must_train("whole", kLonger + std::string("4"));
  begin_longer(tiny);
  tiny.must_train("out", kLonger + std::string("4"));
  EXPECT_EQ(tiny.losses("out"), tiny.losses("whole"));
  EXPECT_TRUE(tiny.text("out/model.safetensors") == tiny.text("whole/model.safetensors"));
}

TEST(SlowEarlierResult, ALongerRunWithoutItsBeginningIsRefused) {
  const TinyRun tiny("longer_lost");
  begin_longer(tiny);
  fs::remove_all(tiny.path("out/checkpoint-2"));
  const auto before = contents(tiny.path("out"));
  const Outcome again = run(tiny.train("out", kLonger + std::string("4")) + " 2>&1");
  EXPECT_EQ(again.exit_code, 2) << again.out;
  EXPECT_NE(again.out.find("a run of 4 steps has begun since"), std::string::npos) << again.out;
  EXPECT_TRUE(contents(tiny.path("out")) == before);
}

TEST(SlowEarlierResult, ARunKilledBeforeItsResultIsToldWhoseTheOldOneIs) {
  const TinyRun tiny("killed_at_end");
  const std::string settings = "method=full max_steps=3";
  tiny.must_train("out", settings);
  const std::string log = tiny.text("out/train_log.jsonl");
  const size_t end = log.find("\"event\": \"end\"");
  ASSERT_NE(end, std::string::npos);
  tiny.file("out/train_log.jsonl", log.substr(0, log.rfind('\n', end) + 1));
  const Outcome again = run(tiny.train("out", settings) + " 2>&1");
  EXPECT_EQ(again.exit_code, 2) << again.out;
  EXPECT_NE(again.out.find("the log has all 3 steps of this run, but not its end: the result is an "
                           "earlier one, unless the log has lost lines"),
            std::string::npos)
      << again.out;
  const Outcome other = run(tiny.train("out", settings + " seed=7") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_EQ(other.out.find("all 3 steps"), std::string::npos) << other.out;
}

// A disk that refused every line of it.
TEST(SlowEarlierResult, ALogWithoutItsLinesIsToldOf) {
  const TinyRun tiny("lost_log");
  const std::string settings = "method=full max_steps=2";
  tiny.must_train("out", settings);
  tiny.file("out/train_log.jsonl", "");
  const std::string told = "the log does not tell that this run ended; it may have lost lines";
  const Outcome again = run(tiny.train("out", settings) + " 2>&1");
  EXPECT_EQ(again.exit_code, 2) << again.out;
  EXPECT_NE(again.out.find(told), std::string::npos) << again.out;
  const Outcome other = run(tiny.train("out", settings + " seed=7") + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_EQ(other.out.find(told), std::string::npos) << other.out;
}

TEST(SlowEarlierResult, FilesThatAnotherPathLeadsToAreTheSame) {
  const TinyRun tiny("other_paths");
  const std::string settings = "method=full max_steps=2 val_size=3";
  tiny.must_train("out", settings);
  const auto elsewhere = [](const fs::path& path) {
    return (path.parent_path() / "." / path.filename()).string();
  };
  const Outcome again = run(tiny.train("out", settings + " data=" + elsewhere(tiny.data()) +
                                                  " model=" + elsewhere(tiny.config())) +
                            " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  const Outcome other = run(tiny.train("out", settings + " data=" + tiny.eval_data()) + " 2>&1");
  EXPECT_EQ(other.exit_code, 2) << other.out;
}

TEST(SlowEarlierResult, AFinishedRunContinuesWhereItsModelAndDataHaveMoved) {
  const TinyRun tiny("moved_inputs");
  const auto in = [&](const std::string& place) {
    return fmt::format(" model={0}/config.json data={0}/train.jsonl", tiny.path(place).string());
  };
  fs::create_directories(tiny.path("before"));
  fs::copy(tiny.config(), tiny.path("before/config.json"));
  fs::copy(tiny.data(), tiny.path("before/train.jsonl"));
  tiny.must_train("whole", kLonger + std::string("4"));
  tiny.must_train("out", kLonger + std::string("2") + in("before"));
  fs::rename(tiny.path("before"), tiny.path("after"));
  const Outcome done = run(tiny.train("out", kLonger + std::string("2") + in("after")) + " 2>&1");
  EXPECT_NE(done.out.find("nothing to do"), std::string::npos) << done.out;
  tiny.must_train("out", kLonger + std::string("4") + in("after"));
  EXPECT_EQ(tiny.losses("out"), tiny.losses("whole"));
  EXPECT_TRUE(tiny.text("out/model.safetensors") == tiny.text("whole/model.safetensors"));
  // Others in another place are others.
  fs::rename(tiny.path("after"), tiny.path("other"));
  tiny.file("other/train.jsonl", read_text(tiny.eval_data()));
  const auto result = tiny.text("out/model.safetensors");
  expect_refused(run(tiny.train("out", kLonger + std::string("6") + in("other")) + kErrorsOnly), 2,
                 {"holds the result of a finished run of 4 steps", "data was ", "the data were "});
  EXPECT_TRUE(tiny.text("out/model.safetensors") == result);
}

// As if the run had been stopped before its answers for the report.
void lose_answers(const TinyRun& tiny) {
  std::string log;
  for (const auto& event : tiny.events("out")) {
    if (event["event"] != "sample" || event["step"] == 0) log += event.dump() + "\n";
  }
  tiny.file("out/train_log.jsonl", log);
}

// Nothing is trained, so no bits differ. Where this machine has no other instruction set than the
// first run's, there is nothing to warn of.
TEST(SlowEarlierResult, AFinishedRunThatOnlyAnswersWarnsOfNoOtherBits) {
  const TinyRun tiny("answers_elsewhere");
  const std::string settings = "max_steps=2 save_steps=2 report_samples=2 isa=";
  tiny.must_train("out", settings + "x86-64-v3");
  lose_answers(tiny);
  const Outcome again = run(tiny.train("out", settings + "auto") + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("the report lacks 2 answers"), std::string::npos) << again.out;
  EXPECT_EQ(again.out.find("not with the same bits"), std::string::npos) << again.out;
  EXPECT_EQ(tiny.events("out", "sample").size(), 4u);
}

// Answers for the report may need more memory than there is now.
TEST(SlowEarlierResult, AFinishedRunIsToldWholeWhereItsAnswersDoNotFit) {
  const TinyRun tiny("answers_do_not_fit");
  const std::string settings = "max_steps=2 save_steps=2 report_samples=2";
  tiny.must_train("out", settings);
  lose_answers(tiny);
  const auto result = tiny.text("out/adapter_model.safetensors");
  expect_refused(
      run(tiny.train("out", settings + " device_memory=1KiB") + kErrorsOnly), 3,
      {"the result is complete in " + tiny.path("out").string() + ", but this run needs ",
       "budget 1.0 KiB (device_memory)"});
  EXPECT_TRUE(tiny.text("out/adapter_model.safetensors") == result);
}

// One that is not there may have been pruned since: it is no error. A name that was mistyped is
// told.
TEST(SlowEarlierResult, AFinishedRunWarnsOfANamedCheckpointThatIsNotThere) {
  const TinyRun tiny("absent_checkpoint");
  tiny.must_train("out", kLonger + std::string("2"));
  for (const char* name : {"out/checkpoint-2", "out/checkpoint-3"}) {
    const std::string from = tiny.path(name).string();
    const Outcome again =
        run(tiny.train("out", kLonger + std::string("2 resume=") + from) + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_EQ(again.out.find("warning: there is no checkpoint " + from) != std::string::npos,
              !fs::exists(from))
        << again.out;
    EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  }
}

TEST(SlowEarlierResult, TheRecipeOfARenamedRunSaysWhereThatIs) {
  const TinyRun tiny("renamed_run");
  tiny.must_train("out", "method=full max_steps=2 save_steps=2");
  fs::rename(tiny.path("out"), tiny.path("renamed"));
  const std::string again = "train " + tiny.path("renamed/recipe.yaml").string() + " max_steps=4";
  const std::string there = "output_dir=" + tiny.path("renamed").string();
  const std::string warning = "renamed is the directory of a run; " + there + " continues it";
  const Outcome anew = run(again + kErrorsOnly);
  EXPECT_EQ(anew.exit_code, 0) << anew.out;
  EXPECT_NE(anew.out.find(warning), std::string::npos) << anew.out;
  const Outcome continued = run(again + " " + there + kErrorsOnly);
  EXPECT_EQ(continued.exit_code, 0) << continued.out;
  EXPECT_EQ(continued.out.find(warning), std::string::npos) << continued.out;
}

// Its log and exports may be all that is left of it.
TEST(SlowEarlierResult, AFinishedRunWhoseWeightsAreGoneIsNotReplaced) {
  const TinyRun tiny("lost_weights");
  for (const char* method : {"full", "lora"}) {
    const std::string settings = fmt::format("overwrite=true max_steps=2 method={} ", method);
    tiny.must_train("out", settings);
    tiny.lose_result("out");
    const auto before = contents(tiny.path("out"));
    for (const char* change : {"learning_rate=0.03", "max_steps=3", "max_samples=30"}) {
      const Outcome other =
          run(tiny.train("out", settings + "overwrite=false " + change) + kErrorsOnly);
      expect_refused(other, 2,
                     {"is of a finished run of 2 steps whose weights are gone: ",
                      "hint: give another output_dir, or move the weights back"});
      EXPECT_TRUE(contents(tiny.path("out")) == before) << change;
    }
    // Its own recipe writes it again.
    tiny.must_train("out", settings + "overwrite=false");
  }
}

TEST(SlowEarlierResult, AnEmptyRecipeIsDamaged) {
  const TinyRun tiny("empty_recipe");
  const std::string settings = kLonger + std::string("2");
  tiny.must_train("out", settings);
  const std::string recipe = tiny.text("out/recipe.yaml");
  tiny.file("out/recipe.yaml", "");
  expect_refused(run(tiny.train("out", settings) + kErrorsOnly), 2,
                 {"holds the result of a finished run of 2 steps: its recipe.yaml is damaged: it "
                  "is empty\n"});
  tiny.file("out/recipe.yaml", recipe);
  tiny.must_train("out", settings);
}

TEST(SlowEarlierResult, AFileThatIsMissingBesideTheWeightsIsWrittenAgain) {
  const TinyRun tiny("not_whole");
  for (const auto& [method, file] :
       {std::pair("full", "config.json"), std::pair("lora", "adapter_config.json")}) {
    const std::string settings = fmt::format("max_steps=2 method={} ", method);
    const std::string output = std::string("out_") + method;
    tiny.must_train(output, settings + "save_steps=2");
    const std::string text = tiny.text(output + "/" + file);
    fs::remove(tiny.path(output) / file);
    const Outcome again = run(tiny.train(output, settings) + kErrorsOnly);
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_NE(
        again.out.find(fmt::format("is not whole: {} is missing; it is written again from ", file)),
        std::string::npos)
        << again.out;
    EXPECT_EQ(tiny.text(output + "/" + file), text);
    // Without the checkpoint of its end it would be trained anew, over weights that are there.
    fs::remove(tiny.path(output) / file);
    fs::remove_all(tiny.path(output + "/checkpoint-2"));
    const auto before = contents(tiny.path(output));
    expect_refused(run(tiny.train(output, settings) + kErrorsOnly), 5,
                   {std::string("is not whole: ") + file + " is missing", "hint: move it back"});
    EXPECT_TRUE(contents(tiny.path(output)) == before);
  }
}

}  // namespace
}  // namespace jackscrew
