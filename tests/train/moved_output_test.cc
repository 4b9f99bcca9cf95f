// An output_dir that is not where it was named, or is moved or removed while a run writes to it,
// through the program.
#include "formats/checkpoint.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

class SlowMovedOutput : public ::testing::TestWithParam<const char*> {
 protected:
  SlowMovedOutput() : tiny_("moved_output") {}

  // Halts a run in `out` after its first checkpoint; what it prints goes to the file `said`.
  std::unique_ptr<Child> halted() {
    return halted_run(tiny_.path("out"), "\"event\": \"save\"", [&] {
      fs::remove_all(tiny_.path("out"));
      return std::make_unique<Child>(tiny_.train("out", settings_), tiny_.path("said"));
    });
  }
  void expect_whole(const std::string& output) {
    tiny_.must_train("whole", settings_);
    const bool adapter = fs::exists(tiny_.path("whole/adapter_model.safetensors"));
    const std::string file = adapter ? "/adapter_model.safetensors" : "/model.safetensors";
    EXPECT_TRUE(tiny_.text("whole" + file) == tiny_.text(output + file));
  }

  TinyRun tiny_;
  const std::string settings_ = std::string(GetParam()) +
                                " max_steps=40 save_steps=4 gradient_accumulation_steps=8 "
                                "save_total_limit=0 learning_rate=1e-3";
};

TEST(MovedOutput, ALinkToNothingIsRefused) {
  const TinyRun tiny("dangling_output");
  fs::create_symlink("nowhere", tiny.path("out"));
  expect_refused(
      run(tiny.train("out") + kErrorsOnly), 2,
      {"/out is a link to nowhere, which cannot be reached", "hint: make that directory"});
}

// The run keeps to the directory that it claimed, and another one under the old name to its own.
TEST_P(SlowMovedOutput, ARunKeepsToTheDirectoryThatItClaimed) {
  const auto first = halted();
  fs::rename(tiny_.path("out"), tiny_.path("out_old"));
  // Another is at work under that name, its masters included, and has ended there.
  Child second(tiny_.train("out", settings_ + " seed=7 max_steps=100000 logging_steps=100000"));
  ASSERT_TRUE(second.until([&] { return fs::exists(tiny_.path("out/checkpoint-4")); }));
  second.stop(SIGKILL);
  fs::create_directories(tiny_.path("out/.jackscrew-masters"));
  tiny_.file("out/checkpoint.save", "");
  const auto before = contents(tiny_.path("out"));
  first->signal(SIGCONT);
  EXPECT_EQ(first->wait(), 0);
  EXPECT_TRUE(contents(tiny_.path("out")) == before);
  EXPECT_TRUE(fs::exists(tiny_.path("out_old/checkpoint-40")));
  EXPECT_FALSE(fs::exists(tiny_.path("out_old/.jackscrew-masters")));
  EXPECT_EQ(tiny_.losses("out_old").size(), 40u);
  expect_whole("out_old");
  // It goes on from there.
  tiny_.lose_result("out_old");
  fs::remove_all(tiny_.path("out_old/checkpoint-40"));
  tiny_.must_train("out_old", settings_);
  expect_whole("out_old");
}

// The same command would begin anew under the old name.
TEST_P(SlowMovedOutput, AStopSaysWhereItGoesOn) {
  const auto first = halted();
  fs::rename(tiny_.path("out"), tiny_.path("out_old"));
  first->signal(SIGINT);
  first->signal(SIGCONT);
  EXPECT_EQ(first->wait(), 130);
  const fs::path moved = fs::canonical(tiny_.path("out_old"));
  const std::vector<fs::path> left = list_checkpoints(moved);
  ASSERT_FALSE(left.empty());
  const std::string said = tiny_.text("said");
  EXPECT_NE(said.find("hint: run the same command with output_dir=" + moved.string() +
                      " to continue from " + left.back().string() + "\n"),
            std::string::npos)
      << said;
  tiny_.must_train("out_old", settings_);
  EXPECT_EQ(tiny_.losses("out_old").size(), 40u);
  expect_whole("out_old");
}

TEST_P(SlowMovedOutput, ADirectoryThatWasRemovedIsMadeAgain) {
  if (settings_.find("mmap") != std::string::npos) GTEST_SKIP() << "its masters were removed, too";
  const auto first = halted();
  fs::remove_all(tiny_.path("out"));
  first->signal(SIGCONT);
  EXPECT_EQ(first->wait(), 0);
  expect_whole("out");
  // With all that it had written.
  EXPECT_EQ(tiny_.losses("out"), tiny_.losses("whole"));
  for (const char* name : {"recipe.yaml", "report.html"}) {
    EXPECT_TRUE(fs::exists(tiny_.path("out") / name)) << name;
  }
  const Outcome again = run(tiny_.train("out", settings_) + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("finished"), std::string::npos) << again.out;
}

TEST_P(SlowMovedOutput, ALogThatWasRemovedIsWrittenAgain) {
  const auto first = halted();
  fs::remove(tiny_.path("out/train_log.jsonl"));
  fs::remove(tiny_.path("out/recipe.yaml"));
  first->signal(SIGCONT);
  EXPECT_EQ(first->wait(), 0);
  expect_whole("out");
  EXPECT_EQ(tiny_.losses("out"), tiny_.losses("whole"));
  EXPECT_TRUE(fs::exists(tiny_.path("out/recipe.yaml")));
}

// Its own is gone, and another has its name: nothing is written there.
TEST_P(SlowMovedOutput, ADirectoryOfAnotherIsLeftAlone) {
  fs::create_directories(tiny_.path("elsewhere"));
  ::setenv("TMPDIR", tiny_.path("elsewhere").c_str(), 1);
  const auto first = halted();
  ::unsetenv("TMPDIR");
  fs::remove_all(tiny_.path("out"));
  fs::create_directories(tiny_.path("out/checkpoint-8"));
  tiny_.file("out/model.safetensors", "mine");
  tiny_.file("out/checkpoint-8/mine", "mine");
  const auto before = contents(tiny_.path("out"));
  first->signal(SIGCONT);
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  first->signal(SIGINT);
  EXPECT_NE(first->wait(), 0);
  EXPECT_TRUE(contents(tiny_.path("out")) == before);
}

INSTANTIATE_TEST_SUITE_P(SlowMethods, SlowMovedOutput,
                         ::testing::Values("method=full",
                                           "method=rotary active_params=50% steps_per_rotation=2 "
                                           "master=mmap moments=keep"),
                         [](const auto& test) { return test.index == 0 ? "full" : "mapped"; });

}  // namespace
}  // namespace jackscrew
