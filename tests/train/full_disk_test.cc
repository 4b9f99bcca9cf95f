// A disk that becomes full while a run lasts, through the program.
#include "base/directory.h"
#include "report/growing_file.h"
#include "tests/support/errors.h"
#include "tests/support/small_disk.h"
#include "tests/support/tiny_run.h"
#include "train/output_dir.h"
#include "train/saving.h"

namespace jackscrew {
namespace {

// A few MiB, filled at will; skips the test where nothing may be mounted.
class SlowFullDisk : public ::testing::Test {
 protected:
  SlowFullDisk() : tiny_("small_disk") {}
  void SetUp() override { SKIP_UNLESS_MOUNTED(mounted_); }

  void fill() const {
    std::FILE* ballast = std::fopen((disk_ / "ballast").c_str(), "w");
    const std::string page(4096, ' ');
    while (std::fwrite(page.data(), 1, page.size(), ballast) == page.size() &&
           std::fflush(ballast) == 0) {
    }
    std::fclose(ballast);
  }
  // Fills the disk but for so many bytes.
  void leave(int64_t bytes) const {
    const auto free = static_cast<int64_t>(fs::space(disk_).available);
    ASSERT_GT(free, bytes);
    write_text_atomic(disk_ / "ballast", std::string(static_cast<size_t>(free - bytes), ' '));
  }
  void make_room() const { fs::remove(disk_ / "ballast"); }
  // Of a disk that is full.
  void make_room(int64_t bytes) const {
    const fs::path ballast = disk_ / "ballast";
    fs::resize_file(ballast, fs::file_size(ballast) - static_cast<uintmax_t>(bytes));
  }

  // A run on the disk whose messages go to a file beside it. Halts it after its first steps and
  // fills the disk, but for what room() says.
  std::unique_ptr<Child> on_a_full_disk(
      const std::string& settings, const std::function<int64_t()>& room = [] { return 0; }) {
    auto child = halted_run(disk_ / "run", "\"step\": 3,", [&] {
      fs::remove_all(disk_ / "run");
      return std::make_unique<Child>(tiny_.train("disk/run", settings), tiny_.path("said"));
    });
    if (const int64_t bytes = room(); bytes > 0) {
      leave(bytes);
    } else {
      fill();
    }
    child->signal(SIGCONT);
    return child;
  }
  bool said(const std::string& words) const {
    return tiny_.text("said").find(words) != std::string::npos;
  }

  // The room that the files of the result in `output` take, in whole pages.
  int64_t room_of_result(const std::string& output) const {
    int64_t room = 0;
    for (const auto& entry : fs::recursive_directory_iterator(tiny_.path(output))) {
      const std::string name = entry.path().filename().string();
      const bool is_of_run = name == "recipe.yaml" || name == "train_log.jsonl" ||
                             name == "report.html" || name.starts_with("events");
      if (is_of_run || !entry.is_regular_file()) continue;
      room += (static_cast<int64_t>(entry.file_size()) + kPage - 1) / kPage * kPage;
    }
    return room;
  }

  static constexpr int64_t kPage = 4096;

  TinyRun tiny_;
  const fs::path disk_ = tiny_.path("disk");
  const SmallDisk mounted_{disk_, "16m"};
};

constexpr const char* kSteps =
    " max_steps=40 gradient_accumulation_steps=8 learning_rate=1e-3 seed=5 ";

TEST_F(SlowFullDisk, TheResultWaitsForRoom) {
  for (const std::string& method :
       {std::string("method=full"), std::string("method=lora save_steps=4")}) {
    const std::string whole = "whole_" + std::to_string(method.size());
    tiny_.must_train(whole, method + kSteps);
    const auto child = on_a_full_disk(method + kSteps);
    ASSERT_TRUE(child->until([&] { return said("waiting for space"); })) << tiny_.text("said");
    EXPECT_TRUE(said("the result is not written: ")) << tiny_.text("said");
    EXPECT_TRUE(said("No space left on device")) << tiny_.text("said");
    make_room();
    EXPECT_EQ(child->wait(), 0) << tiny_.text("said");
    const std::string file =
        method == "method=full" ? "/model.safetensors" : "/adapter_model.safetensors";
    EXPECT_TRUE(tiny_.text(whole + file) == tiny_.text("disk/run" + file));
    // No line of the log was lost, and none is torn.
    EXPECT_EQ(tiny_.losses("disk/run"), tiny_.losses(whole));
    EXPECT_EQ(tiny_.events("disk/run", "end").size(), 1u);
    fs::remove_all(disk_ / "run");
  }
}

// Without its end in the log, a run with a result would not count as finished.
TEST_F(SlowFullDisk, TheEndOfTheLogWaitsForRoom) {
  // The lines of so many steps are longer than what is left of the room for the result.
  const std::string settings = std::string("method=full") + kSteps + "max_steps=100 ";
  tiny_.must_train("whole", settings);
  const auto child = on_a_full_disk(settings);
  ASSERT_TRUE(child->until([&] { return said("checkpoint-100 is not written"); }))
      << tiny_.text("said");
  make_room(room_of_result("whole") + kPage);
  ASSERT_TRUE(child->until([&] { return said("train_log.jsonl is not written: "); }))
      << tiny_.text("said");
  EXPECT_TRUE(fs::exists(disk_ / "run/model.safetensors"));
  EXPECT_TRUE(tiny_.events("disk/run", "end").empty());
  make_room();
  EXPECT_EQ(child->wait(), 0) << tiny_.text("said");
  EXPECT_EQ(tiny_.losses("disk/run"), tiny_.losses("whole"));
  EXPECT_EQ(tiny_.events("disk/run", "end").size(), 1u);
  const Outcome again = run(tiny_.train("disk/run", settings) + " 2>&1");
  EXPECT_EQ(again.exit_code, 0) << again.out;
  EXPECT_NE(again.out.find("nothing to do"), std::string::npos) << again.out;
}

// What a try has written of a result that does not fit leaves its room to the next.
TEST_F(SlowFullDisk, AResultThatDoesNotFitLeavesNothing) {
  for (const std::string method : {"full", "lora"}) {
    SCOPED_TRACE(method);
    const std::string settings = "method=" + method + kSteps;
    tiny_.must_train(method, settings);
    const auto child = on_a_full_disk(settings);
    ASSERT_TRUE(child->until([&] { return said("checkpoint-40 is not written"); }))
        << tiny_.text("said");
    const fs::path output = disk_ / "run", staging = whole_result(output);
    const auto before = fs::last_write_time(output);
    make_room(room_of_result(method) - kPage);
    // It does not say that another try has failed: then its directory has changed, and nothing of
    // the try is there under its temporary name, nor under the one that it gets next.
    int looks = 0;
    constexpr int kMostLooks = 500000;
    ASSERT_TRUE(child->until([&] {
      const bool has_tried = fs::last_write_time(output) != before &&
                             !fs::exists(staging.string() + kTemporarySuffix) &&
                             !fs::exists(staging);
      return has_tried || ++looks == kMostLooks;
    })) << tiny_.text("said");
    EXPECT_LT(looks, kMostLooks);
    EXPECT_FALSE(has_result(output));
    make_room();
    EXPECT_EQ(child->wait(), 0) << tiny_.text("said");
    const std::string file = method == "full" ? "/model.safetensors" : "/adapter_model.safetensors";
    EXPECT_TRUE(tiny_.text(method + file) == tiny_.text("disk/run" + file));
    EXPECT_EQ(tiny_.text(method + "/tokenizer.json"), tiny_.text("disk/run/tokenizer.json"));
    fs::remove_all(disk_ / "run");
  }
}

// Ended while it waits, it leaves its states on another disk.
TEST_F(SlowFullDisk, ACheckpointIsLeftWhereOneFits) {
  const std::string settings = std::string("method=full") + kSteps;
  tiny_.must_train("whole", settings);
  const fs::path elsewhere = tiny_.path("elsewhere");
  fs::create_directories(elsewhere);
  ::setenv("TMPDIR", elsewhere.c_str(), 1);
  const auto child = on_a_full_disk(settings);
  ::unsetenv("TMPDIR");
  ASSERT_TRUE(child->until([&] { return said("waiting for space"); })) << tiny_.text("said");
  EXPECT_EQ(child->stop(SIGINT), 130);
  EXPECT_TRUE(said("stopping without the result; a checkpoint is left")) << tiny_.text("said");
  EXPECT_TRUE(said("the checkpoint is ")) << tiny_.text("said");
  const std::string said = tiny_.text("said");
  const size_t begin = said.find("resume=") + 7;
  const fs::path checkpoint = said.substr(begin, said.find(' ', begin) - begin);
  EXPECT_EQ(checkpoint.filename(), "checkpoint-40");
  make_room();
  for (const auto& entry : fs::directory_iterator(disk_ / "run")) {
    const std::string name = entry.path().filename().string();
    EXPECT_TRUE(name == "recipe.yaml" || name == "train_log.jsonl" || name.starts_with("events"))
        << name;
  }
  tiny_.must_train("disk/run", settings + "resume=" + checkpoint.string());
  EXPECT_TRUE(tiny_.text("whole/model.safetensors") == tiny_.text("disk/run/model.safetensors"));
}

// What fails may be anything, even in a library.
TEST(WritePatiently, SavesAfterEveryFailureThatLeavesStates) {
  const TemporaryDirectory directory("jackscrew_patient");
  OutputClaim claim(directory.path() / "run");
  const auto saves = [&](ErrorKind kind, const std::function<void()>& write) {
    bool saved = false;
    expect_message(kind, "it failed",
                   [&] { write_patiently({}, "the result", claim, write, [&] { saved = true; }); });
    return saved;
  };
  for (const ErrorKind kind : {ErrorKind::generic, ErrorKind::model}) {
    EXPECT_TRUE(saves(kind, [&] { fail(kind, "it failed"); }));
  }
  EXPECT_TRUE(saves(ErrorKind::generic, [] {
    throw fs::filesystem_error("it failed", std::make_error_code(std::errc::permission_denied));
  }));
  for (const ErrorKind kind : {ErrorKind::non_finite, ErrorKind::device, ErrorKind::interrupted}) {
    EXPECT_FALSE(saves(kind, [&] { fail(kind, "it failed"); }));
  }
}

constexpr const char* kNoPlace = "/proc";  // nobody may make a directory there, root included

// Whatever is wrong with the other place, the first reason is told, too.
TEST(WriteElsewhere, SaysBothReasons) {
  expect_message(ErrorKind::generic, "the disk is full, and cannot create /proc/jackscrew-", [] {
    write_elsewhere(ErrorKind::interrupted, Error(ErrorKind::generic, "the disk is full"),
                    [](const fs::path& directory) { return directory; }, {kNoPlace});
  });
}

TEST(WriteElsewhere, TakesTheFirstPlaceThatHasRoom) {
  const TemporaryDirectory full("jackscrew_full_place"), other("jackscrew_other_place");
  const auto write = [&](const fs::path& directory) {
    write_text_atomic(directory / "state", "1");
    if (directory.parent_path() == full.path()) fail(ErrorKind::generic, "no room there either");
    return directory / "checkpoint-1";
  };
  const std::string there = other.path().string() + "/jackscrew-";
  expect_message(ErrorKind::interrupted, "the disk is full; the checkpoint is " + there, [&] {
    write_elsewhere(ErrorKind::interrupted, Error(ErrorKind::generic, "the disk is full"), write,
                    {kNoPlace, full.path(), other.path()});
  });
  EXPECT_TRUE(fs::is_empty(full.path()));
}

TEST(WriteElsewhere, HasOtherPlacesThanTheOneThatIsNamed) {
  using Places = std::vector<fs::path>;
  ::setenv("TMPDIR", kNoPlace, 1);
  EXPECT_EQ(places_elsewhere(), (Places{kNoPlace, "/var/tmp", "/tmp"}));
  ::setenv("TMPDIR", "/var/tmp", 1);
  EXPECT_EQ(places_elsewhere(), (Places{"/var/tmp", "/tmp"}));
  ::unsetenv("TMPDIR");
}

// A file system that somebody has mounted in it stays, and what is around it.
TEST_F(SlowFullDisk, WhatStaysOfAnOldCheckpointIsSaid) {
  const std::string settings = "max_steps=4 save_steps=2 report_samples=0 ";
  tiny_.must_train("out", settings);
  tiny_.lose_result("out");
  fs::remove_all(tiny_.path("out/checkpoint-4"));
  const SmallDisk held(tiny_.path("out/checkpoint-2/held"), "1m");
  const Outcome pruned = run(tiny_.train("out", settings + "save_total_limit=1") + kErrorsOnly);
  ::umount2(tiny_.path("out/checkpoint-2.part/held").c_str(), MNT_DETACH);
  EXPECT_EQ(pruned.exit_code, 0) << pruned.out;
  EXPECT_NE(pruned.out.find("warning: " + tiny_.path("out/checkpoint-2.part").string() +
                            " is left of a checkpoint"),
            std::string::npos)
      << pruned.out;
}

// The states of the last step make room for the best only once they are saved, and a result of the
// best that cannot be written is no more lost than another.
TEST_F(SlowFullDisk, TheBestIsTakenAgain) {
  const std::string settings =
      "method=full gradient_accumulation_steps=32 max_steps=10 eval_steps=2 report_samples=0 "
      "load_best_model_at_end=true learning_rate=0.2 lr_scheduler_type=constant warmup_steps=0 "
      "eval_data=" +
      tiny_.eval_data() + " ";
  tiny_.must_train("whole", settings);
  const fs::path elsewhere = tiny_.path("elsewhere");
  fs::create_directories(elsewhere);
  for (const bool has_room_for_a_checkpoint : {false, true}) {
    SCOPED_TRACE(has_room_for_a_checkpoint);
    ::setenv("TMPDIR", elsewhere.c_str(), 1);
    const auto child = on_a_full_disk(settings, [&] {
      const fs::path best = disk_ / "run/checkpoint-2";
      EXPECT_TRUE(fs::exists(best));
      return has_room_for_a_checkpoint ? bytes_of_files(best) + (int64_t{64} << 10) : 0;
    });
    ::unsetenv("TMPDIR");
    ASSERT_TRUE(child->until([&] { return said("waiting for space"); })) << tiny_.text("said");
    EXPECT_EQ(said("the result is not written: "), has_room_for_a_checkpoint);
    EXPECT_EQ(child->stop(SIGINT), 130) << tiny_.text("said");
    make_room();
    std::string again = settings;
    const fs::path saved = disk_ / "run/checkpoint-10";
    EXPECT_EQ(fs::exists(saved), has_room_for_a_checkpoint);
    if (has_room_for_a_checkpoint) {
      EXPECT_TRUE(said("hint: run the same command again to continue from " + saved.string()))
          << tiny_.text("said");
    } else {
      const std::string text = tiny_.text("said");
      const size_t begin = text.find("resume=") + 7;
      again += "resume=" + text.substr(begin, text.find(' ', begin) - begin);
      EXPECT_NE(again.find("/checkpoint-10"), std::string::npos) << text;
    }
    tiny_.must_train("disk/run", again);
    EXPECT_TRUE(tiny_.text("whole/model.safetensors") == tiny_.text("disk/run/model.safetensors"));
    fs::remove_all(disk_ / "run");
  }
}

// Masters that move need no room that was not reserved, checkpoints linked to them or not.
TEST_F(SlowFullDisk, RotationsNeedNoMoreRoom) {
  const std::string settings =
      std::string("method=rotary master=mmap moments=keep active_params=50% steps_per_rotation=2") +
      kSteps + "save_steps=";
  for (const char* save_steps : {"0", "2", "20"}) {
    const std::string whole = std::string("whole") + save_steps;
    tiny_.must_train(whole, settings + save_steps);
    const auto child = on_a_full_disk(settings + save_steps);
    const bool waited = child->until([&] { return said("waiting for space"); });
    // A checkpoint that was being written when the disk was filled leaves its room to the result.
    EXPECT_TRUE(waited || said("checkpoint-4 is not written")) << tiny_.text("said");
    make_room();
    EXPECT_EQ(child->wait(), 0) << tiny_.text("said");
    EXPECT_TRUE(tiny_.text(whole + "/model.safetensors") ==
                tiny_.text("disk/run/model.safetensors"));
    EXPECT_EQ(tiny_.losses("disk/run"), tiny_.losses(whole));
    fs::remove_all(disk_ / "run");
  }
}

// A model beside the result is written when there is room for it; the result does not wait.
TEST_F(SlowFullDisk, AnExportIsWrittenLater) {
  const std::string settings = "method=full max_steps=1 export=gguf:f32,gguf:q8_0";
  tiny_.must_train("whole", settings);
  tiny_.must_train("disk/run", "method=full max_steps=1");
  fill();
  const Outcome refused = run(tiny_.train("disk/run", settings) + " 2>&1");
  EXPECT_EQ(refused.exit_code, 1) << refused.out;
  for (const char* words : {"export=gguf:f32: ", "the result is complete in ",
                            "run the same command again, or: jackscrew export model="}) {
    EXPECT_NE(refused.out.find(words), std::string::npos) << refused.out;
  }
  EXPECT_FALSE(fs::exists(disk_ / "run/exports/model-f32.gguf.jackscrew-part"));
  EXPECT_TRUE(tiny_.text("whole/model.safetensors") == tiny_.text("disk/run/model.safetensors"));
  make_room();
  tiny_.must_train("disk/run", settings);
  for (const std::string name : {"model-f32.gguf", "model-q8_0.gguf"}) {
    EXPECT_EQ(fs::file_size(tiny_.path("whole/exports/" + name)),
              fs::file_size(disk_ / "run/exports" / name));
  }
}

// The checkpoints that a run goes on from and its masters are there already.
TEST_F(SlowFullDisk, OnlyWhatIsMissingIsWarnedOf) {
  for (const std::string master : {"ram", "mmap"}) {
    const std::string settings =
        "method=rotary storage=int8 active_params=50% steps_per_rotation=2 report_samples=0 "
        "save_steps=2 master=" +
        master;
    tiny_.must_train("disk/run", settings + " max_steps=2");
    const std::string longer = settings + " max_steps=4";
    const Outcome planned = run("plan " + tiny_.settings(longer) + " --json 2>/dev/null");
    const auto masters = nlohmann::json::parse(planned.out)["disk"]["masters"].get<int64_t>();
    EXPECT_EQ(masters > 0, master == "mmap");
    const auto result = static_cast<int64_t>(fs::file_size(disk_ / "run/model.safetensors"));
    // Of two planned checkpoints one is missing. The room of the other is for its growth, the log
    // and the files that masters move to.
    leave(masters + 2 * bytes_of_files(disk_ / "run/checkpoint-2") + result);
    const Outcome resumed = run(tiny_.train("disk/run", longer) + " 2>&1");
    EXPECT_EQ(resumed.exit_code, 0) << resumed.out;
    EXPECT_NE(resumed.out.find("resuming from"), std::string::npos) << resumed.out;
    EXPECT_EQ(resumed.out.find("may write"), std::string::npos) << resumed.out;
    make_room();
    fs::remove_all(disk_ / "run");
  }
}

TEST_F(SlowFullDisk, AFileGrowsByWholePieces) {
  const fs::path path = disk_ / "grown";
  {
    GrowingFile file(path);
    file.append("first\n");
    fill();
    const std::string large(8192, 'x');  // more than the rest of a page
    file.append(large + "\n");
    file.append("third\n");
    EXPECT_EQ(read_text(path), "first\n");
    make_room();
    file.append("fourth\n");
    EXPECT_EQ(read_text(path), "first\n" + large + "\nthird\nfourth\n");
  }
  EXPECT_FALSE(GrowingFile(path).began_empty());
}

TEST_F(SlowFullDisk, LinesAreNotLostWithoutAWord) {
  ::testing::internal::CaptureStderr();
  {
    GrowingFile file(disk_ / "grown");
    file.append("first\n");
    EXPECT_NO_THROW(file.flush());
    fill();
    file.append(std::string(8192, 'x') + "\n");
    EXPECT_THROW(file.flush(), FullDisk);
  }
  const std::string warnings = ::testing::internal::GetCapturedStderr();
  EXPECT_NE(warnings.find("cannot write the last lines of "), std::string::npos) << warnings;
  EXPECT_EQ(read_text(disk_ / "grown"), "first\n");
}

}  // namespace
}  // namespace jackscrew
