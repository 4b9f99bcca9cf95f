// Runs that are stopped, killed and resumed, through the program: the same bits as if nothing had
// happened.

#include <random>

#include "base/directory.h"
#include "formats/checkpoint.h"
#include "tests/support/small_disk.h"
#include "tests/support/tiny_run.h"

namespace jackscrew {
namespace {

constexpr const char* kSaving = " max_steps=50 save_steps=3 learning_rate=1e-3 ";

// The result at the top of an output_dir.
std::string weights(const TinyRun& tiny, const std::string& output) {
  const bool adapter = fs::exists(tiny.path(output) / "adapter_model.safetensors");
  return tiny.text(output + (adapter ? "/adapter_model.safetensors" : "/model.safetensors"));
}

void expect_same_run(const TinyRun& tiny, const std::string& a, const std::string& b) {
  EXPECT_TRUE(weights(tiny, a) == weights(tiny, b));
  EXPECT_EQ(tiny.losses(a), tiny.losses(b));
}

void expect_tidy(const TinyRun& tiny, const std::string& output) {
  for (const auto& entry : fs::directory_iterator(tiny.path(output))) {
    const fs::path extension = entry.path().extension();
    EXPECT_TRUE(extension != ".part" && extension != ".old") << entry.path();
    EXPECT_FALSE(entry.path().filename().string().starts_with(".jackscrew-result")) << entry.path();
  }
}

// Stops by taking away everything after the checkpoint of a step, as a crash right after it would.
void resume_from(const TinyRun& tiny, const std::string& whole, const std::string& settings,
                 int64_t step) {
  const fs::path copy = tiny.path(whole + "_" + std::to_string(step));
  const std::string checkpoint = "checkpoint-" + std::to_string(step);
  fs::create_directories(copy);
  fs::copy(tiny.path(whole) / checkpoint, copy / checkpoint, fs::copy_options::recursive);
  fs::copy(tiny.path(whole) / "train_log.jsonl", copy);
  tiny.must_train(copy.filename().string(), settings);
  expect_same_run(tiny, whole, copy.filename().string());
}

class SlowResume : public ::testing::TestWithParam<const char*> {};

// 40 records in pairs of packed rows: an epoch is shorter than the run.
TEST_P(SlowResume, GoesOnWithTheSameBits) {
  const TinyRun tiny("resume");
  const std::string settings = std::string(GetParam()) + kSaving + "save_total_limit=0";
  tiny.must_train("whole", settings);
  EXPECT_EQ(tiny.losses("whole").size(), 50u);
  EXPECT_GT(tiny.events("whole", "step").back()["epoch"], 2.0);
  for (const int64_t step : {3, 21, 48, 50}) resume_from(tiny, "whole", settings, step);
  tiny.must_train("again", settings);
  expect_same_run(tiny, "whole", "again");
  tiny.must_train("threads", settings + " threads=2");
  expect_same_run(tiny, "whole", "threads");
}

// The step of the newest checkpoint of a run that is under way; 0 before the first.
int64_t newest_checkpoint(const fs::path& output) {
  const std::vector<fs::path> all = list_checkpoints(output);
  const std::string prefix = "checkpoint-";
  return all.empty() ? 0 : std::stoll(all.back().filename().string().substr(prefix.size()));
}

// The last step in the log of a run that is under way; 0 before the first.
int64_t last_step(const fs::path& output) {
  const auto events = read_events(output / "train_log.jsonl");
  return events.empty() ? 0 : events.back()["step"].get<int64_t>();
}

bool is_saving(const fs::path& output) {
  std::error_code gone;
  for (const auto& entry : fs::directory_iterator(output, gone)) {
    if (entry.path().extension() == ".part") return true;
  }
  return false;
}

// After a crash the newest checkpoint must be what the run that nothing happened to saved there.
void expect_same_checkpoint(const TinyRun& tiny, const std::string& whole,
                            const std::string& output) {
  const int64_t step = newest_checkpoint(tiny.path(output));
  if (step == 0) return;
  const std::string name = "/checkpoint-" + std::to_string(step);
  const auto saved = [&](const std::string& run) {
    auto files = contents(tiny.path(run + name));
    files.erase("recipe.yaml");  // names another output_dir
    return files;
  };
  EXPECT_TRUE(saved(whole) == saved(output)) << output << name;
}

constexpr int kKills = 12;
// Each kill comes some steps after the one before, so that none comes after the end, however fast
// the machine.
constexpr int64_t kStepsBetweenKills = 9;
constexpr const char* kKilled = " max_steps=150 save_total_limit=0";

// Other moments with every repetition; docs/pains.md has the command for many.
std::mt19937 moments() {
  return std::mt19937(static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()));
}

// Lets a run that has been killed so many times go on, to a moment by chance: of its start, of its
// steps or of a save. False where it has ended by itself.
bool reach_a_moment(Child& child, const fs::path& output, int kills, std::mt19937& random) {
  enum class Moment : uint32_t { start, step, save };
  const auto moment = static_cast<Moment>(random() % 3);
  const std::chrono::microseconds delay(random() % (moment == Moment::save ? 2000 : 60000));
  const auto wait = [&] {
    const auto end = std::chrono::steady_clock::now() + delay;
    return child.until([&] { return std::chrono::steady_clock::now() >= end; });
  };
  if (moment == Moment::start) return wait();
  const bool there =
      child.until([&] { return newest_checkpoint(output) >= kStepsBetweenKills * kills; });
  if (moment == Moment::step) return there && wait();
  return child.until([&] { return is_saving(output); }) && wait();
}

TEST_P(SlowResume, SurvivesBeingKilledAtAnyMoment) {
  const TinyRun tiny("killed");
  const std::string settings = std::string(GetParam()) + kSaving + kKilled;
  tiny.must_train("whole", settings);
  std::mt19937 random = moments();
  for (int kills = 0, attempt = 1; kills < kKills; ++kills) {
    Child child(tiny.train("killed", settings));
    reach_a_moment(child, tiny.path("killed"), kills, random);
    const int ended = child.stop(SIGKILL);
    if (ended == 0 && ++attempt <= 10) {  // this process got its turn too late: all over again
      fs::remove_all(tiny.path("killed"));
      kills = -1;
      continue;
    }
    EXPECT_EQ(ended, -SIGKILL) << kills;
    expect_same_checkpoint(tiny, "whole", "killed");
  }
  tiny.must_train("killed", settings);
  expect_same_run(tiny, "whole", "killed");
  expect_tidy(tiny, "killed");
}

// The same with a disk that has room for nothing, for part of what is to be written or for some
// checkpoints: the run continues without them, and is killed.
TEST_P(SlowResume, SurvivesAFullDisk) {
  const TinyRun tiny("full_disk");
  const std::string settings = std::string(GetParam()) + kSaving + kKilled + " save_total_limit=2";
  tiny.must_train("whole", settings + " save_total_limit=0");
  const fs::path disk = tiny.path("disk");
  const fs::path ballast = disk / "ballast";
  const SmallDisk mounted(disk, "16m");
  SKIP_UNLESS_MOUNTED(mounted);
  const auto checkpoint_bytes =
      static_cast<uint64_t>(bytes_of_files(tiny.path("whole/checkpoint-150")));
  std::mt19937 random = moments();
  for (int kills = 0; kills < kKills; ++kills) {
    fs::remove(ballast);
    const uint64_t room = random() % (3 * checkpoint_bytes);
    write_text_atomic(ballast, std::string(fs::space(disk).available - room, ' '));
    Child child(tiny.train("disk/run", settings));
    // Without room for checkpoints none comes to wait for, and without any no step is logged.
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(2);
    child.until([&] {
      return std::chrono::steady_clock::now() >= end ||
             newest_checkpoint(disk / "run") >= kStepsBetweenKills * kills ||
             last_step(disk / "run") >= kStepsBetweenKills * (kills + 1);
    });
    const int ended = child.stop(SIGKILL);
    // 1: no room for the first line of a log; 0: it came to its end, and says so from then on.
    EXPECT_TRUE(ended == 1 || ended == -SIGKILL || ended == 0) << ended;
    if (fs::exists(disk / "run")) expect_same_checkpoint(tiny, "whole", "disk/run");
  }
  fs::remove(ballast);
  tiny.must_train("disk/run", settings);
  expect_same_run(tiny, "whole", "disk/run");
  expect_tidy(tiny, "disk/run");
}

TEST_P(SlowResume, AnInterruptSavesAndTheRunGoesOn) {
  const TinyRun tiny("interrupt");
  const std::string settings =
      std::string(GetParam()) + kSaving + "save_steps=0 gradient_accumulation_steps=10";
  tiny.must_train("whole", settings);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    const std::string output = "stopped" + std::to_string(signal);
    const auto child = halted_run(tiny.path(output), "\"event\": \"step\"", [&] {
      fs::remove_all(tiny.path(output));
      return std::make_unique<Child>(tiny.train(output, settings));
    });
    EXPECT_EQ(child->stop(signal), 130);
    const int64_t done = tiny.events(output).back()["step"];
    EXPECT_LT(done, 50);
    EXPECT_TRUE(fs::exists(tiny.path(output) / ("checkpoint-" + std::to_string(done))));
    EXPECT_FALSE(fs::exists(tiny.path(output) / "config.json"));
    tiny.must_train(output, settings);
    expect_same_run(tiny, "whole", output);
    expect_tidy(tiny, output);
  }
}

std::string method_name(const ::testing::TestParamInfo<const char*>& test) {
  constexpr const char* kNames[] = {"full",       "lora",        "prompt",      "rotary",
                                    "mapped",     "states_8bit", "kept_8bit",   "dora",
                                    "saved",      "qgalore",     "galore_bf16", "int4",
                                    "int4_paper", "pissa",       "bf16_masters"};
  return kNames[test.index];
}

INSTANTIATE_TEST_SUITE_P(SlowMethods, SlowResume,
                         ::testing::Values("method=full", "method=lora lora_dropout=0.1",
                                           "method=prompt prompt_tokens=4",
                                           "method=rotary active_params=50% steps_per_rotation=4",
                                           "method=rotary rotation_groups=matrix master=mmap "
                                           "rotation_order=importance churn=0.5 moments=keep "
                                           "active_params=60% steps_per_rotation=5",
                                           "method=full storage=int8 optimizer=adamw_8bit",
                                           "method=rotary static=rotate moments=keep "
                                           "active_params=60% steps_per_rotation=5 "
                                           "optimizer=adamw_8bit",
                                           "method=lora use_dora=true lora_dropout=0.1 "
                                           "storage=nf4 rank_pattern=q_proj=3",
                                           "method=lora modules_to_save=embed_tokens "
                                           "storage=bf16 lora_b_learning_rate_ratio=4",
                                           "method=qgalore projection_update_gap=6 "
                                           "projection_window=4 lazy_overlap=0.2",
                                           "method=galore storage=bf16 projection_update_gap=5 "
                                           "projection_dtype=bf16 stagger_refreshes=false "
                                           "gradient_accumulation_steps=2",
                                           "method=full product=int4 storage=bf16",
                                           "method=full product=int4 int4_mode=paper "
                                           "int4_block=search int4_cold_steps=6 "
                                           "gradient_accumulation_steps=2",
                                           "method=lora lora_init=pissa lora_rank=4 storage=nf4 "
                                           "lora_dropout=0.1",
                                           "method=rotary master_dtype=bf16 storage=int8 "
                                           "active_params=50% steps_per_rotation=3"),
                         method_name);

TEST(SlowResumeRules, ARunGivenUpDoesNotComeBack) {
  const TinyRun tiny("given_up");
  const std::string common = "max_steps=12 save_steps=4 save_total_limit=0";
  tiny.must_train("out", common);
  const std::string first = tiny.text("out/adapter_model.safetensors");
  // Anew with another seed, stopped early: its own checkpoint counts, not those of the first run.
  tiny.must_train("out", common + " seed=1 overwrite=true max_steps=4");
  EXPECT_TRUE(fs::exists(tiny.path("out/checkpoint-4")));
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-8")));
  EXPECT_FALSE(fs::exists(tiny.path("out/checkpoint-12")));
  EXPECT_EQ(tiny.losses("out").size(), 4u);
  // A finished run without its result writes the same one again.
  tiny.must_train("out2", common);
  EXPECT_TRUE(first == tiny.text("out2/adapter_model.safetensors"));
  tiny.lose_result("out2");
  tiny.must_train("out2", common);
  EXPECT_TRUE(first == tiny.text("out2/adapter_model.safetensors"));
}

// What the run before had done after that checkpoint is not a part of this one.
TEST(SlowResumeRules, AnOlderBranchLeavesNoCheckpoints) {
  const TinyRun tiny("older_branch");
  const std::string settings =
      "method=full lr_scheduler_type=constant warmup_steps=0 save_total_limit=0 report_samples=0 ";
  const auto left = [&](const std::string& output) {
    std::string names;
    for (const fs::path& path : list_checkpoints(tiny.path(output))) {
      names += " " + path.filename().string();
    }
    return names;
  };
  const auto branch = [&](const std::string& output, const std::string& more) {
    tiny.must_train(output, settings + "learning_rate=1e-3 max_steps=8 save_steps=1");
    tiny.must_train(output, settings + "learning_rate=5e-3 max_steps=8 overwrite=true " + more +
                                "resume=" + tiny.path(output + "/checkpoint-3").string());
  };
  branch("saves_none", "");
  EXPECT_EQ(left("saves_none"), " checkpoint-1 checkpoint-2 checkpoint-3");
  const std::string longer = settings + "learning_rate=5e-3 max_steps=12";
  const Outcome outcome = run(tiny.train("saves_none", longer) + " 2>&1");
  EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
  EXPECT_NE(outcome.out.find("it left no checkpoint-8 to continue from"), std::string::npos)
      << outcome.out;
  branch("saves_some", "save_steps=6 ");
  EXPECT_EQ(left("saves_some"),
            " checkpoint-1 checkpoint-2 checkpoint-3 checkpoint-6 checkpoint-8");
}

TEST(SlowResumeRules, AChangedRecipeIsNamedWhereTheResultDependsOnIt) {
  const TinyRun tiny("changed");
  const std::string settings =
      "max_steps=4 save_steps=2 learning_rate=1e-4 lora_target=q_proj,v_proj ";
  tiny.must_train("out", settings);
  const auto said = [&](const std::string& changes) {
    const Outcome outcome = run(tiny.train("out", settings + changes) + kErrorsOnly);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out;
  };
  EXPECT_EQ(said(""), "");
  EXPECT_EQ(said("learning_rate=0.0001 threads=2 device_memory=1GiB gradient_checkpointing=true "
                 "product=f32 logging_steps=3 save_steps=1 save_total_limit=7 eval_steps=1 "
                 "overwrite=true eval_data=" +
                 tiny.eval_data() + " resume=" + tiny.path("out/checkpoint-2").string()),
            "");
  const auto line = [](const std::string& name, const std::string& then, const std::string& now) {
    return "jackscrew: warning: " + name + " was " + then +
           " when the checkpoint was written and is " + now +
           " now; continuing with the new value\n";
  };
  const std::string changed =
      "max_steps=6 learning_rate=3e-05 packing=false lora_alpha=3 product=int4 ";
  const std::string replacing = " overwrite=true resume=" + tiny.path("out/checkpoint-4").string();
  EXPECT_EQ(said(changed + replacing),
            line("packing", "true", "false") + line("product", "f32", "int4") +
                line("max_steps", "4", "6") + line("learning_rate", "0.0001", "3e-05") +
                line("lora_alpha", "auto", "3"));
  // Now it is the recipe of the newest checkpoint.
  EXPECT_EQ(said(changed), "");
}

// A run that was killed after its result and before its report.
TEST(SlowResume, AFinishedRunGetsTheReportThatItLacks) {
  const TinyRun tiny("no_report");
  tiny.must_train("out", "method=lora max_steps=2");
  const std::string result = weights(tiny, "out");
  fs::remove(tiny.path("out/report.html"));
  tiny.must_train("out", "method=lora max_steps=2");
  EXPECT_TRUE(fs::exists(tiny.path("out/report.html")));
  EXPECT_TRUE(weights(tiny, "out") == result);
}

// An adapter that learned half of its steps beside other weights fits neither.
TEST(SlowResumeRules, AChangedModelIsNoSilentMatter) {
  const TinyRun tiny("changed_model");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string settings = "init=pretrained model=" + tiny.path("base").string() +
                               " method=lora max_steps=4 save_steps=2 ";
  tiny.must_train("out", settings + "max_steps=2");
  tiny.lose_result("out");
  tiny.must_train("base", "method=full max_steps=1 seed=2 overwrite=true");
  const Outcome refused = run(tiny.train("out", settings) + kErrorsOnly);
  EXPECT_EQ(refused.exit_code, 5) << refused.out;
  EXPECT_NE(refused.out.find("the model has changed since"), std::string::npos) << refused.out;
  const fs::path checkpoint = tiny.path("out/checkpoint-2");
  const Outcome asked =
      run(tiny.train("out", settings + "resume=" + checkpoint.string()) + kErrorsOnly);
  EXPECT_EQ(asked.exit_code, 0) << asked.out;
  EXPECT_NE(asked.out.find("the model has changed since"), std::string::npos) << asked.out;
  // Nor is the adapter of another model the result of this recipe.
  tiny.must_train("base", "method=full max_steps=1 seed=3 overwrite=true");
  const Outcome stale = run(tiny.train("out", settings) + kErrorsOnly);
  EXPECT_EQ(stale.exit_code, 5) << stale.out;
  EXPECT_NE(stale.out.find("holds the result of a finished run of 4 steps: the model had "),
            std::string::npos)
      << stale.out;
}

// What the steps so far have read by other tokens is not gone on with in silence.
TEST(SlowResumeRules, AChangedTemplateIsNoSilentMatter) {
  const TinyRun tiny("changed_template");
  tiny.must_train("base", "method=full max_steps=1");
  const std::string settings =
      "init=pretrained tokenizer=auto model=" + tiny.path("base").string() +
      " method=full save_steps=2 ";
  tiny.must_train("out", settings + "max_steps=2");
  tiny.lose_result("out");
  tiny.file("base/chat_template.jinja", "{% for m in messages %}{{ m.content }}!{% endfor %}");
  const Outcome refused = run(tiny.train("out", settings + "max_steps=4") + kErrorsOnly);
  EXPECT_EQ(refused.exit_code, 5) << refused.out;
  EXPECT_NE(refused.out.find(", chat template "), std::string::npos) << refused.out;
}

// Where all weights learn, the configuration is what a checkpoint does not have of its model.
TEST(SlowResumeRules, AChangedConfigurationIsNoSilentMatter) {
  const TinyRun tiny("changed_config");
  const auto with_theta = [&](double theta) {
    nlohmann::json config = nlohmann::json::parse(tiny.text("config.json"));
    config["rope_theta"] = theta;
    tiny.file("config.json", config.dump());
  };
  tiny.must_train("out", "method=full max_steps=2 save_steps=2");
  tiny.lose_result("out");
  with_theta(50.0);
  const std::string longer = "method=full max_steps=4 save_steps=2 ";
  const Outcome refused = run(tiny.train("out", longer) + kErrorsOnly);
  EXPECT_EQ(refused.exit_code, 5) << refused.out;
  EXPECT_NE(refused.out.find("the model has changed since"), std::string::npos) << refused.out;
  with_theta(10000.0);
  tiny.must_train("out", longer);
}

// Without being asked no run goes on over other data under the same name; asked, it says so.
TEST(SlowResumeRules, ChangedDataIsNoSilentMatter) {
  const TinyRun tiny("changed_data");
  tiny.must_train("out", "max_steps=4 save_steps=2");
  tiny.lose_result("out");
  tiny.file("train.jsonl", tiny.text("train.jsonl") + TinyRun::record("New", "one"));
  const std::string settings = "max_steps=6 save_steps=2 ";
  EXPECT_EQ(run(tiny.train("out", settings) + kErrorsOnly).exit_code, 4);
  const fs::path checkpoint = tiny.path("out/checkpoint-4");
  const Outcome asked =
      run(tiny.train("out", settings + "resume=" + checkpoint.string()) + kErrorsOnly);
  EXPECT_EQ(asked.exit_code, 0);
  EXPECT_NE(asked.out.find("warning: the data have changed since " + checkpoint.string() +
                           " was written: 41 records of "),
            std::string::npos)
      << asked.out;
  // The newest checkpoint is of the data as it is now.
  tiny.must_train("out", settings + "max_steps=8");
}

// Where an option chooses other texts of the same files, it is what has changed.
TEST(SlowResumeRules, AnotherFieldIsNoChangeOfTheData) {
  const TinyRun tiny("changed_field");
  std::string records;
  for (int i = 0; i < 8; ++i) {
    records += nlohmann::json{{"text", "one " + std::to_string(i)}, {"body", "two"}}.dump() + "\n";
  }
  const std::string settings = "save_steps=2 data=" + tiny.file("fields.jsonl", records);
  tiny.must_train("out", settings + " max_steps=4");
  fs::remove_all(tiny.path("out/checkpoint-4"));
  tiny.lose_result("out");
  const Outcome other =
      run(tiny.train("out", settings + " max_steps=4 field_text=body") + kErrorsOnly);
  EXPECT_EQ(other.exit_code, 0) << other.out;
  EXPECT_EQ(
      other.out,
      "jackscrew: warning: field_text was not set when the checkpoint was written and is body "
      "now; continuing with the new value\n");
}

// What is logged of the steps since the last line is the same, whatever lines there were.
TEST(SlowResumeRules, TokensOfEveryStepAreLogged) {
  const TinyRun tiny("logged_tokens");
  const std::string settings = "save_steps=1 save_total_limit=0 method=lora max_steps=";
  const auto tokens = [&](const std::string& output) {
    std::map<int64_t, int64_t> by_step;
    for (const auto& event : tiny.events(output, "step")) by_step[event["step"]] = event["tokens"];
    return by_step;
  };
  tiny.must_train("each", settings + "9 logging_steps=1");
  std::map<int64_t, int64_t> expected;
  for (const auto& [step, count] : tokens("each")) expected[(step + 3) / 4 * 4] += count;
  tiny.must_train("out", settings + "12 logging_steps=4");
  expected[12] = tokens("out")[12];
  EXPECT_EQ(tokens("out"), expected);
  for (const int64_t step : {11, 7, 6, 4, 3}) {
    tiny.lose_result("out");
    for (int64_t later = step + 1; later <= 12; ++later) {
      fs::remove_all(tiny.path("out/checkpoint-" + std::to_string(later)));
    }
    tiny.must_train("out", settings + "12 logging_steps=4");
    EXPECT_EQ(tokens("out"), expected) << step;
  }
  // A run that goes on elsewhere logs its own steps.
  const std::string resume = " resume=" + tiny.path("out/checkpoint-6").string();
  tiny.must_train("elsewhere", settings + "12 logging_steps=4" + resume);
  EXPECT_EQ(tokens("elsewhere")[8], tokens("each")[7] + tokens("each")[8]);
}

// What made the result is not what a later command asks for when there is nothing left to do.
TEST(SlowResumeRules, AnEndedRunKeepsItsRecipe) {
  const TinyRun tiny("ended_recipe");
  tiny.must_train("out", "max_steps=2 save_steps=2 learning_rate=1e-3");
  const std::string recipe = tiny.text("out/recipe.yaml");
  tiny.lose_result("out");
  tiny.must_train("out", "max_steps=2 save_steps=2 learning_rate=1e-2");
  EXPECT_EQ(tiny.text("out/recipe.yaml"), recipe);
  tiny.lose_result("out");
  tiny.must_train("out", "max_steps=3 save_steps=2 learning_rate=1e-2");
  EXPECT_NE(tiny.text("out/recipe.yaml"), recipe);
}

TEST(SlowResumeRules, TwoRunsDoNotShareADirectory) {
  const TinyRun tiny("shared");
  Child first(tiny.train("out", "max_steps=100000 logging_steps=1000"));
  ASSERT_TRUE(first.until([&] { return fs::exists(tiny.path("out/recipe.yaml")); }));
  const Outcome second = run(tiny.train("out", "max_steps=2") + kErrorsOnly);
  EXPECT_EQ(second.exit_code, 1);
  EXPECT_NE(second.out.find("another run is writing to"), std::string::npos) << second.out;
  first.stop(SIGKILL);
  tiny.must_train("out", "max_steps=2");
}

}  // namespace
}  // namespace jackscrew
