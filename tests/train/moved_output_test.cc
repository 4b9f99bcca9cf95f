// An output_dir that is not where it was named, or is moved or removed while a run writes to it,
// through the program.
#include "formats/checkpoint.h"
#include "tests/cli/expect_refused.h"
#include "tests/support/errors.h"
#include "tests/support/tiny_run.h"
#include "train/output_dir.h"
#include "train/saving.h"

namespace jackscrew {
namespace {

// In place of a directory a link to itself: as on a file system that has gone, nobody can say what
// is there, root included.
void make_unreachable(const fs::path& directory) {
  fs::remove_all(directory);
  fs::create_symlink(directory.filename(), directory);
}

TEST(OutputDir, TheRootDirectoryIsRefused) {
  for (const char* root : {"/", "//", "/tmp/.."}) {
    Recipe recipe;
    recipe.output_dir = root;
    expect_message(ErrorKind::usage, "is the root directory", [&] { check_output_dir(recipe); });
  }
}

TEST(OutputDir, OneThatCannotBeListedIsNotWithoutResult) {
  const TinyRun tiny("unlisted_output");
  make_unreachable(tiny.path("out"));
  expect_message(ErrorKind::generic, "cannot list " + tiny.path("out").string() + ": ",
                 [&] { has_result(tiny.path("out")); });
  EXPECT_FALSE(has_result(tiny.data()));  // a file
}

class SlowMovedOutput : public ::testing::TestWithParam<const char*> {
 protected:
  SlowMovedOutput() : tiny_("moved_output") {}

  // Halts a run in `out` after its first checkpoint; what it prints goes to the file `said`.
  std::unique_ptr<Child> halted(const std::string& more = "") {
    return halted_run(tiny_.path("out"), "\"event\": \"save\"", [&] {
      fs::remove_all(tiny_.path("out"));
      return std::make_unique<Child>(tiny_.train("out", settings_ + more), tiny_.path("said"));
    });
  }
  // The same with a directory of its own for what it leaves elsewhere.
  std::unique_ptr<Child> halted_with_temporaries(const std::string& more = "") {
    fs::create_directories(tiny_.path("elsewhere"));
    ::setenv("TMPDIR", tiny_.path("elsewhere").c_str(), 1);
    auto child = halted(more);
    ::unsetenv("TMPDIR");
    return child;
  }
  // The checkpoint that a hint names, which lies there.
  fs::path left_elsewhere() {
    const std::string said = tiny_.text("said");
    const size_t begin = said.find("resume=" + tiny_.path("elsewhere").string());
    if (begin == std::string::npos) {
      ADD_FAILURE() << said;
      return {};
    }
    const fs::path checkpoint = said.substr(begin + 7, said.find(' ', begin) - begin - 7);
    EXPECT_TRUE(is_checkpoint(checkpoint)) << said;
    return checkpoint;
  }
  bool masters_are_files() const { return settings_.find("mmap") != std::string::npos; }
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

TEST(MovedOutput, WhatCannotBeReachedIsAnError) {
  const TinyRun tiny("unreachable_output");
  OutputClaim claim(tiny.path("out"));
  make_unreachable(tiny.path("out"));
  expect_message(ErrorKind::generic, "cannot reach " + tiny.path("out").string() + ": ",
                 [&] { claim.path(); });
}

TEST(MovedOutput, WhatIsInItIsFoundAgain) {
  const TinyRun tiny("found_output");
  const fs::path out = tiny.path("out"), moved = tiny.path("moved");
  OutputClaim claim(out);
  fs::create_directories(out / "checkpoint-2");
  EXPECT_EQ(claim.present(out / "checkpoint-2"), out / "checkpoint-2");
  fs::rename(out, moved);
  EXPECT_EQ(claim.present(out / "checkpoint-2"), fs::canonical(moved) / "checkpoint-2");
  EXPECT_EQ(claim.present(tiny.data()), tiny.data());
  EXPECT_EQ(claim.present("gone/checkpoint-4"), "gone/checkpoint-4");
  EXPECT_EQ(claim.present({}), fs::path());
}

// While the result is written, say.
TEST(MovedOutput, WhatWasBeingWrittenIsWrittenWhereItIsNow) {
  const TinyRun tiny("moved_while_writing");
  OutputClaim claim(tiny.path("out"));
  int tries = 0;
  const auto write = [&] {
    AtomicDirectory result(claim.path() / "result");
    write_text_atomic(result.path() / "a", "1");
    if (++tries == 1) fs::rename(tiny.path("out"), tiny.path("moved"));
    result.commit();
  };
  write_patiently({}, "the result", claim, write, [] { ADD_FAILURE() << "it is refused"; });
  EXPECT_EQ(tries, 2);
  EXPECT_EQ(tiny.text("moved/result/a"), "1");
  EXPECT_FALSE(fs::exists(tiny.path("out")));
  EXPECT_FALSE(fs::exists(tiny.path("moved/result.jackscrew-part")));
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
  // It continues from there.
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
  if (masters_are_files()) GTEST_SKIP() << "its masters were removed, too";
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

TEST_P(SlowMovedOutput, ALogThatWasRemovedRenamedOrReplacedIsWrittenAgain) {
  const fs::path log = tiny_.path("out/train_log.jsonl");
  const std::string removed = "removed", renamed = "renamed", replaced = "replaced";
  for (const std::string& what : {removed, renamed, replaced}) {
    SCOPED_TRACE(what);
    const auto first = halted();
    if (what == removed) {
      fs::remove(log);
    } else {
      fs::rename(log, log.string() + ".1");
    }
    if (what == replaced) tiny_.file("out/train_log.jsonl", "");
    fs::remove(tiny_.path("out/recipe.yaml"));
    first->signal(SIGCONT);
    EXPECT_EQ(first->wait(), 0) << tiny_.text("said");
    expect_whole("out");
    EXPECT_EQ(tiny_.losses("out"), tiny_.losses("whole"));
    EXPECT_TRUE(fs::exists(tiny_.path("out/recipe.yaml")));
    const Outcome again = run(tiny_.train("out", settings_) + " 2>&1");
    EXPECT_EQ(again.exit_code, 0) << again.out;
    EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
  }
}

// The last answers are given after the result is written, as many as before the first step.
TEST_P(SlowMovedOutput, ALogThatWasRenamedAmongTheLastAnswersIsWrittenAgain) {
  const fs::path log = tiny_.path("out/train_log.jsonl");
  const auto answers = [&] { return tiny_.events("out", "sample").size(); };
  for (int attempt = 0; attempt < 10; ++attempt) {
    fs::remove_all(tiny_.path("out"));
    Child child(tiny_.train("out", settings_ + " max_steps=4 report_samples=40"));
    const bool has_ended = child.until([&] {
      return fs::exists(log) && read_text(log).find("\"event\": \"end\"") != std::string::npos;
    });
    if (!has_ended || !child.halt()) continue;
    size_t before = 0;
    for (const auto& event : tiny_.events("out", "sample")) before += event["step"] == 0 ? 1 : 0;
    if (answers() == 2 * before) continue;  // too late
    fs::rename(log, log.string() + ".1");
    child.signal(SIGCONT);
    EXPECT_EQ(child.wait(), 0);
    ASSERT_TRUE(fs::exists(log));
    EXPECT_EQ(answers(), 2 * before);
    EXPECT_TRUE(fs::exists(tiny_.path("out/report.html")));
    return;
  }
  FAIL() << "no run was halted among its last answers";
}

// What took the log's place makes no report, and the result is whole all the same.
TEST_P(SlowMovedOutput, AReportThatCannotBeMadeIsAWarning) {
  const fs::path log = tiny_.path("out/train_log.jsonl");
  const auto first = halted();
  fs::rename(log, log.string() + ".1");
  fs::create_directory(log);
  first->signal(SIGCONT);
  EXPECT_EQ(first->wait(), 0);
  expect_whole("out");
  const std::string said = tiny_.text("said");
  EXPECT_NE(said.find("report.html is not written: "), std::string::npos) << said;
}

// Whether the run is stopped or comes to its end.
TEST_P(SlowMovedOutput, AStateIsLeftElsewhereIfTheDirectoryCannotBeReached) {
  if (masters_are_files()) GTEST_SKIP() << "its masters were removed, too";
  for (const bool is_stopped : {false, true}) {
    SCOPED_TRACE(is_stopped);
    const auto child = halted_with_temporaries();
    make_unreachable(tiny_.path("out"));
    if (is_stopped) child->signal(SIGTERM);
    child->signal(SIGCONT);
    EXPECT_EQ(child->wait(), is_stopped ? 130 : 1);
    const fs::path checkpoint = left_elsewhere();
    fs::remove_all(tiny_.path("again"));
    tiny_.must_train("again", settings_ + " resume=" + checkpoint.string());
    expect_whole("again");
  }
}

// The best evaluation is not the last, and its checkpoint was in the directory.
TEST_P(SlowMovedOutput, AStateIsLeftElsewhereWithoutTheBest) {
  if (masters_are_files()) GTEST_SKIP() << "its masters were removed, too";
  const auto child = halted_with_temporaries(
      " load_best_model_at_end=true eval_steps=4 learning_rate=0.2 lr_scheduler_type=constant "
      "warmup_steps=0 eval_data=" +
      tiny_.eval_data());
  fs::remove_all(tiny_.path("out"));
  fs::create_directories(tiny_.path("out"));
  child->signal(SIGCONT);
  EXPECT_EQ(child->wait(), 1);
  EXPECT_EQ(left_elsewhere().filename(), "checkpoint-40");
  EXPECT_TRUE(fs::is_empty(tiny_.path("out")));
}

// Its own is gone, and another has its name: nothing is written there.
TEST_P(SlowMovedOutput, ADirectoryOfAnotherIsLeftAlone) {
  const auto first = halted_with_temporaries();
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
