// Several ranks through the program, as users start and end them: the bits of one rank whatever
// happens, one message where something does, and nobody left.
#include <random>

#include "base/process_memory.h"
#include "tests/support/mpirun.h"
#include "tests/support/small_disk.h"

namespace jackscrew {
namespace {

constexpr const char* kStopped = "stopped after step";

class SlowRanksProgram : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string why = no_ranks(); !why.empty()) GTEST_SKIP() << why;
  }

  // Of `ranks` ranks, expecting success; 1: without mpirun.
  void must_train(int ranks, const std::string& output, const std::string& settings) const {
    if (ranks == 1) return tiny_.must_train(output, settings);
    const Outcome outcome = run_on_ranks(ranks, tiny_.train(output, settings));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.out;
  }

  // What must be equal, by name: weights and states, losses, answers.
  std::map<std::string, std::string> bits_of(const std::string& output) const {
    std::map<std::string, std::string> out;
    for (const auto& [name, bytes] : contents(tiny_.path(output))) {
      if (name.ends_with(".safetensors") || name.ends_with("config.json")) out[name] = bytes;
    }
    for (const auto& event : tiny_.events(output)) {
      const std::string kind = event["event"];
      const std::string at = kind + " " + event["step"].dump();
      if (kind == "step") out[at] = event["loss"].dump() + " " + event["grad_norm"].dump();
      if (kind == "eval") out[at] = event["eval_loss"].dump();
      if (kind == "sample") out[at] += event["answer"].dump();
    }
    return out;
  }

  void expect_same(const std::string& got, const std::string& want) const {
    const auto a = bits_of(got), b = bits_of(want);
    for (const auto& [name, bytes] : b) {
      const auto found = a.find(name);
      EXPECT_TRUE(found != a.end() && found->second == bytes) << name << " of " << got;
    }
    EXPECT_EQ(a.size(), b.size()) << got;
  }

  // The result alone: runs that were interrupted have other checkpoints and logs.
  void expect_same_result(const std::string& got, const std::string& want) const {
    const bool adapter = fs::exists(tiny_.path(want) / "adapter_model.safetensors");
    const std::string file = adapter ? "/adapter_model.safetensors" : "/model.safetensors";
    EXPECT_TRUE(tiny_.text(got + file) == tiny_.text(want + file)) << got;
  }

  // Ranks in the background; what they say is text("said").
  RanksChild start(int ranks, const std::string& output, const std::string& settings) const {
    return RanksChild(ranks, tiny_.train(output, settings), tiny_.path("said"));
  }
  bool said(const std::string& words) const {
    return tiny_.text("said").find(words) != std::string::npos;
  }
  bool reaches(RanksChild& child, const std::string& words) const {
    return child.until([&] { return said(words); });
  }

  // A usage error of all ranks: one of them says it.
  static void expect_refused(int ranks, const std::string& arguments, int exit_code,
                             const std::string& words) {
    const Outcome outcome = run_on_ranks(ranks, arguments);
    EXPECT_EQ(outcome.exit_code, exit_code) << outcome.out;
    EXPECT_EQ(count_of(outcome.out, "jackscrew: error: "), 1) << outcome.out;
    EXPECT_NE(outcome.out.find(words), std::string::npos) << outcome.out;
  }

  TinyRun tiny_{"ranks_program"};
  const std::string evaluated_ =
      "max_steps=4 save_steps=2 eval_steps=2 report_samples=2 logging_steps=1 eval_data=" +
      tiny_.eval_data() + " ";
};

TEST_F(SlowRanksProgram, LeaveWhatOneRankLeaves) {
  for (const std::string& method : {std::string("method=full "), std::string("method=lora ")}) {
    const std::string lanes = evaluated_ + method + "data_parallel=2 overwrite=true ";
    must_train(1, "one", lanes);
    must_train(2, "copies", lanes);
    expect_same("copies", "one");
    must_train(2, "stages", lanes + "pipeline_stages=2");
    expect_same("stages", "one");
    must_train(4, "both", lanes + "pipeline_stages=2");
    expect_same("both", "one");
  }
}

TEST_F(SlowRanksProgram, GoOnAsAnyOtherNumber) {
  const std::string settings =
      "method=full data_parallel=4 lr_scheduler_type=constant save_steps=2 ";
  must_train(1, "whole", settings + "max_steps=6");
  must_train(4, "run", settings + "max_steps=2");
  must_train(1, "run", settings + "max_steps=4");
  must_train(2, "run", settings + "max_steps=6 pipeline_stages=2");
  expect_same_result("run", "whole");
  EXPECT_TRUE(tiny_.text("run/checkpoint-6/state.safetensors") ==
              tiny_.text("whole/checkpoint-6/state.safetensors"));
}

TEST_F(SlowRanksProgram, AdaptersGoOnInStages) {
  must_train(1, "base", "method=full max_steps=1");
  const std::string on_base =
      "init=pretrained method=lora data_parallel=2 max_steps=2 save_steps=2 model=" +
      tiny_.path("base").string() + " ";
  must_train(4, "adapter", on_base + "pipeline_stages=2");
  const std::string further = on_base + "adapter=" + tiny_.path("adapter").string() + " ";
  must_train(1, "one", further);
  must_train(4, "four", further + "pipeline_stages=2");
  expect_same("four", "one");
}

constexpr const char* kLong =
    "method=full data_parallel=2 logging_steps=1 save_steps=5 save_total_limit=3 "
    "lr_scheduler_type=constant warmup_steps=0 ";

TEST_F(SlowRanksProgram, RankZeroStopsAllOfThem) {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
    RanksChild child = start(2, "run", std::string(kLong) + "max_steps=1000000");
    const auto processes = child.processes(2);
    ASSERT_TRUE(reaches(child, "/1000000 "));
    ::kill(processes.at(0), signal);
    EXPECT_EQ(child.wait(), 130) << tiny_.text("said");
    EXPECT_EQ(count_of(tiny_.text("said"), kStopped), 1) << tiny_.text("said");
    EXPECT_TRUE(said("with a checkpoint if all ranks still answer; ")) << tiny_.text("said");
    EXPECT_TRUE(RanksChild::all_gone(processes));
  }
  const std::string to_its_end =
      fmt::format("{}max_steps={} save_steps=0", kLong, tiny_.losses("run").rbegin()->first + 3);
  must_train(2, "run", to_its_end + " pipeline_stages=2");
  must_train(1, "whole", to_its_end);
  expect_same_result("run", "whole");
}

// As in any other step. Where it comes before that has begun, or after it, once more.
TEST_F(SlowRanksProgram, AStopDuringTheLastStepDependsOnAllRanks) {
  std::string many;
  for (int i = 0; i < 4000; ++i) many += TinyRun::record("Say", std::to_string(i));
  const std::string settings =
      "method=full data_parallel=2 max_steps=2 logging_steps=1 report_samples=0 packing=false "
      "gradient_accumulation_steps=1000 data=" +
      tiny_.file("many.jsonl", many);
  bool told = false;
  for (int attempt = 0; attempt < 10 && !told; ++attempt) {
    RanksChild child = start(2, fmt::format("run{}", attempt), settings);
    const auto processes = child.processes(2);
    if (!reaches(child, "step 1/2 ")) continue;
    ::kill(processes.at(0), SIGTERM);
    child.wait();
    told = said("stopping once the result is written, if all ranks still answer; ");
    EXPECT_TRUE(RanksChild::all_gone(processes));
  }
  EXPECT_TRUE(told) << tiny_.text("said");
}

// Within a batch of the evaluation that comes first, whose tensors are on their way from rank 0.
TEST_F(SlowRanksProgram, AStopBeforeTheFirstStepEndsAll) {
  std::string many;
  for (int i = 0; i < 4000; ++i) many += TinyRun::record("Say a number", std::string(60, '7'));
  const std::string settings =
      "method=full max_steps=2 pipeline_stages=2 micro_batch_size=32 "
      "eval_data=" +
      tiny_.file("many.jsonl", many);
  for (int stops = 0; stops < 3; ++stops) {
    RanksChild child = start(2, "run", settings);
    const auto processes = child.processes(2);
    ASSERT_TRUE(reaches(child, "warm-up"));
    std::this_thread::sleep_for(std::chrono::milliseconds(30 * stops));
    ::kill(processes.at(0), SIGTERM);
    EXPECT_EQ(child.wait(), 130) << tiny_.text("said");
    EXPECT_EQ(count_of(tiny_.text("said"), "stopped before the first step"), 1)
        << tiny_.text("said");
    EXPECT_TRUE(said("hint: if another rank has failed, mend that first; this command"))
        << tiny_.text("said");
    EXPECT_EQ(count_of(tiny_.text("said"), "Signal: "), 0) << tiny_.text("said");
    EXPECT_TRUE(RanksChild::all_gone(processes));
  }
  EXPECT_TRUE(tiny_.events("run", "step").empty());
}

// mpirun sends signals to all ranks; what they mean is rank 0's to say.
TEST_F(SlowRanksProgram, OthersLeaveSignalsToRankZero) {
  must_train(1, "whole", std::string(kLong) + "max_steps=40");
  RanksChild child = start(3, "run", std::string(kLong) + "max_steps=40 pipeline_stages=3");
  child.wait();
  EXPECT_TRUE(said("2 blocks cannot be shared out over 3 stages")) << tiny_.text("said");
  RanksChild two = start(2, "run", std::string(kLong) + "max_steps=40");
  const auto processes = two.processes(2);
  ASSERT_TRUE(reaches(two, "step 2/"));
  for (int i = 0; i < 3; ++i) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGUSR1}) ::kill(processes.at(1), signal);
  }
  EXPECT_EQ(two.wait(), 0) << tiny_.text("said");
  expect_same_result("run", "whole");
}

TEST_F(SlowRanksProgram, ACheckpointOnRequest) {
  RanksChild child = start(2, "run", "method=full logging_steps=1 save_steps=0 max_steps=200");
  const auto processes = child.processes(2);
  ASSERT_TRUE(reaches(child, "step 2/"));
  child.signal(SIGUSR1);  // mpirun hands it on to all
  EXPECT_TRUE(reaches(child, "saved ")) << tiny_.text("said");
  EXPECT_EQ(child.wait(), 0) << tiny_.text("said");
  EXPECT_EQ(count_of(tiny_.text("said"), "saved "), 1) << tiny_.text("said");
}

TEST_F(SlowRanksProgram, AStopOfMpirunEndsAll) {
  RanksChild child = start(2, "run", std::string(kLong) + "max_steps=1000000");
  const auto processes = child.processes(2);
  ASSERT_TRUE(reaches(child, "step 2/"));
  child.signal(SIGTERM);
  EXPECT_NE(child.wait(), 0);
  EXPECT_TRUE(RanksChild::all_gone(processes));
}

// At any moment: while they load, work and save.
TEST_F(SlowRanksProgram, WhoeverIsKilledEndsAllAndTheRunGoesOn) {
  const std::string settings = std::string(kLong) + "max_steps=60 save_steps=2 pipeline_stages=2 ";
  must_train(1, "whole", std::string(kLong) + "max_steps=60 save_steps=2");
  std::mt19937 random(static_cast<uint32_t>(::testing::UnitTest::GetInstance()->random_seed()));
  int killed = 0;
  for (; killed < 8; ++killed) {
    RanksChild child = start(4, "run", settings);
    const auto processes = child.processes(4);
    if (std::ssize(processes) < 4) break;  // nothing was left to do
    if (killed % 4 > 0 && !reaches(child, "step ")) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    ::kill(processes.at(killed % 4), SIGKILL);
    EXPECT_NE(child.wait(), 0) << tiny_.text("said");
    EXPECT_TRUE(RanksChild::all_gone(processes)) << tiny_.text("said");
    EXPECT_LE(count_of(tiny_.text("said"), "jackscrew: error: "), 1) << tiny_.text("said");
  }
  EXPECT_GE(killed, 1) << tiny_.text("said");
  must_train(2, "run", settings);
  expect_same_result("run", "whole");
  EXPECT_TRUE(tiny_.text("run/checkpoint-60/state.safetensors") ==
              tiny_.text("whole/checkpoint-60/state.safetensors"));
}

TEST_F(SlowRanksProgram, WhoeverStandsStillIsGivenUp) {
  for (const int stopped : {0, 1, 3}) {
    RanksChild child = start(4, "run",
                             std::string(kLong) +
                                 "max_steps=1000000 pipeline_stages=2 overwrite=true "
                                 "communication_timeout=3");
    const auto processes = child.processes(4);
    ASSERT_TRUE(reaches(child, "step 2/"));
    ::kill(processes.at(stopped), SIGSTOP);
    EXPECT_EQ(child.wait(), 7) << tiny_.text("said");
    EXPECT_TRUE(RanksChild::all_gone(processes)) << tiny_.text("said");
    EXPECT_EQ(count_of(tiny_.text("said"), "jackscrew: error: "), 1) << tiny_.text("said");
    EXPECT_TRUE(said(fmt::format("rank {} on ", stopped))) << tiny_.text("said");
  }
}

TEST_F(SlowRanksProgram, OneSaysWhatIsWrongWithAll) {
  const std::string good = tiny_.train("run", "max_steps=2 ");
  expect_refused(3, good + "pipeline_stages=2", 2, "3 ranks cannot be divided into pipelines of 2");
  expect_refused(2, good + "data_parallel=3", 2, "cannot be divided");
  expect_refused(2, good + "pipelin_stages=2", 2, "unknown option \"pipelin_stages\"");
  expect_refused(2, good + "model=nowhere", 5, "model nowhere does not exist");
  expect_refused(2, good + "device_memory=900KiB", 3, "this run needs");
  expect_refused(2, "plan " + tiny_.settings(), 2, "plan is the work of one process");
  expect_refused(2, "generate " + tiny_.settings("prompt=Hello"), 2, "generate is the work of one");
  // What all find while the run begins, and when their states are restored.
  must_train(1, "bf16", "method=full storage=bf16 checkpoint_dtype=bf16 max_steps=1");
  expect_refused(2,
                 good + "init=pretrained method=lora lora_init=loftq storage=bf16 model=" +
                     tiny_.path("bf16").string(),
                 2, "hint: they are stored as exactly as their model has them");
  EXPECT_FALSE(fs::exists(tiny_.path("run")));
  const std::string rotary = "method=rotary steps_per_rotation=1 save_steps=2 max_steps=4 ";
  must_train(2, "half", rotary + "active_params=60%");
  expect_refused(2,
                 tiny_.train("third", rotary + "active_params=30% resume=") +
                     tiny_.path("half/checkpoint-2").string(),
                 5, "parameters are active there, active_params allows");
  EXPECT_FALSE(fs::exists(tiny_.path("third")));
}

// Whoever it is that does not fit is named, rank 0 as well.
TEST_F(SlowRanksProgram, TheRankThatDoesNotFitIsNamed) {
  for (const auto& [budgets, rank] :
       {std::pair("900KiB,100MiB", "rank 0 on "), std::pair("100MiB,900KiB", "rank 1 on ")}) {
    const Outcome outcome = run_on_ranks(
        2, tiny_.train("run", fmt::format("max_steps=2 rank_device_memory={}", budgets)));
    EXPECT_EQ(outcome.exit_code, 3) << outcome.out;
    EXPECT_NE(outcome.out.find(fmt::format("error: {}", rank)), std::string::npos) << outcome.out;
    EXPECT_NE(outcome.out.find(", budget 900.0 KiB (rank_device_memory)"), std::string::npos)
        << outcome.out;
  }
}

TEST_F(SlowRanksProgram, OtherSettingsOfARankAreNotUsedInSilence) {
  const auto started = [&](const std::string& second) {
    const Outcome outcome = run_shell(fmt::format(
        "{} {} {} : -n 1 {} {} </dev/null 2>&1", mpirun(1), kProgram,
        tiny_.train("run", "max_steps=2 report_samples=0 overwrite=true"), kProgram, second));
    EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
    return outcome.out;
  };
  const std::string same = tiny_.train("run", "max_steps=2 report_samples=0");
  EXPECT_EQ(started(same).find("warning"), std::string::npos);
  const std::string said = started(same + " seed=9 max_steps=5");
  EXPECT_NE(
      said.find("not all ranks were started with the same max_steps, seed: rank 0's are used"),
      std::string::npos)
      << said;
}

// What is wrong with one rank's arguments alone, or with its files.
TEST_F(SlowRanksProgram, ARankSaysWhatIsWrongWithIt) {
  const std::string good = tiny_.train("run", "max_steps=2");
  const Outcome other =
      run_shell(fmt::format("{} {} {} : -n 1 {} train nowhere.yaml </dev/null 2>&1", mpirun(1),
                            kProgram, good, kProgram));
  EXPECT_EQ(other.exit_code, 2) << other.out;
  EXPECT_EQ(count_of(other.out, "jackscrew: error: "), 1) << other.out;
  EXPECT_NE(other.out.find("rank 1 on "), std::string::npos) << other.out;

  // Another file of the same name, on what stands for another machine.
  if (run_shell("unshare -m true 2>&1").exit_code != 0) GTEST_SKIP() << "no right to mount";
  std::string config = read_text(tiny_.config());
  config.replace(config.find("\"max_position_embeddings\": 128"), 30,
                 "\"max_position_embeddings\":  64");
  const std::string changed = tiny_.file("other.json", config);
  const Outcome model = run_shell(fmt::format(
      "{} {} {} : -n 1 unshare -m sh -c 'mount --bind {} {} && exec {} {}' </dev/null 2>&1",
      mpirun(1), kProgram, good, changed, tiny_.config(), kProgram, good));
  EXPECT_EQ(model.exit_code, 5) << model.out;
  EXPECT_EQ(count_of(model.out, "jackscrew: error: "), 1) << model.out;
  EXPECT_NE(model.out.find("the model or adapter here is not that of rank 0"), std::string::npos)
      << model.out;
}

TEST_F(SlowRanksProgram, ARankWithoutItsLibraryIsNamed) {
  const fs::path copy = tiny_.path("alone");
  fs::copy_file(kProgram, copy);
  const std::string arguments = tiny_.train("run", "max_steps=2");
  const Outcome outcome = run_shell(fmt::format("{} {} {} : -n 1 {} {} </dev/null 2>&1", mpirun(1),
                                                kProgram, arguments, copy.string(), arguments));
  EXPECT_EQ(outcome.exit_code, 7) << outcome.out;
  EXPECT_NE(outcome.out.find("jackscrew: error: rank 1 on "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find(": MPI cannot be loaded: "), std::string::npos) << outcome.out;
}

// While it loads its stage of the model: no other rank may wait for it there.
TEST_F(SlowRanksProgram, ARankThatCannotLoadEndsAll) {
  if (run_shell("unshare -m true 2>&1").exit_code != 0) GTEST_SKIP() << "no right to mount";
  const fs::path directory = tiny_.path("read_only");
  fs::create_directories(directory);
  const std::string command = fmt::format(
      "{} {}", kProgram,
      tiny_.train("read_only/run",
                  "method=rotary active_params=60% master=mmap steps_per_rotation=2 max_steps=4 "
                  "pipeline_stages=2"));
  const Outcome outcome = run_shell(fmt::format(
      "{0} {1} : -n 1 unshare -m sh -c 'mount --bind {2} {2} && mount -o remount,bind,ro {2} && "
      "exec {1}' </dev/null 2>&1",
      mpirun(1), command, directory.string()));
  EXPECT_NE(outcome.exit_code, 0) << outcome.out;
  EXPECT_EQ(count_of(outcome.out, "jackscrew: error: "), 1) << outcome.out;
  EXPECT_NE(outcome.out.find("rank 1 on "), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("Read-only file system"), std::string::npos) << outcome.out;
}

// Each alone would fit.
TEST_F(SlowRanksProgram, RanksOfAMachineMustFitTogether) {
  constexpr double kShare = 0.65;             // of what is free
  constexpr double kBlockBytes = 16.8e6 * 4;  // of weights in f32
  const auto blocks =
      static_cast<int64_t>(kShare * static_cast<double>(available_memory_bytes()) / kBlockBytes);
  std::string config = read_text(tiny_.config());
  const auto set = [&](const std::string& from, const std::string& to) {
    config.replace(config.find(from), from.size(), to);
  };
  set("\"hidden_size\": 32", "\"hidden_size\": 1024");
  set("\"intermediate_size\": 64", "\"intermediate_size\": 4608");
  set("\"num_hidden_layers\": 2", "\"num_hidden_layers\": " + std::to_string(blocks));
  const std::string large = tiny_.file("large.json", config);
  expect_refused(2, tiny_.train("run", "lora_r=1 gradient_checkpointing=true model=" + large), 3,
                 "the 2 ranks on ");
}

TEST_F(SlowRanksProgram, AStepThatIsNotFiniteEndsAll) {
  const std::string diverging =
      "method=full data_parallel=2 learning_rate=1e20 max_grad_norm=0 "
      "warmup_steps=0 lr_scheduler_type=constant logging_steps=1 max_steps=50 ";
  const Outcome one = run(tiny_.train("one", diverging) + " 2>&1");
  EXPECT_EQ(one.exit_code, 6) << one.out;
  for (const char* arrangement : {"", "pipeline_stages=2"}) {
    expect_refused(2, tiny_.train("two", diverging + "overwrite=true " + arrangement), 6,
                   "the step was not applied");
    EXPECT_EQ(tiny_.losses("two"), tiny_.losses("one"));
  }
}

// While the states of another rank are written: what it sends is taken all the same.
TEST_F(SlowRanksProgram, AFullDisk) {
  const fs::path disk = tiny_.path("disk");
  const SmallDisk mounted(disk, "4m");
  SKIP_UNLESS_MOUNTED(mounted);
  const std::string settings = "method=full save_steps=2 save_total_limit=1 max_steps=12 ";
  must_train(1, "whole", settings);
  {
    // Leaves room for the states of rank 0, and for the result.
    std::ofstream ballast(disk / "ballast");
    ballast << std::string((size_t{4} << 20) - (400 << 10), ' ');
  }
  const Outcome outcome = run_on_ranks(2, tiny_.train("disk/run", settings + "pipeline_stages=2"));
  EXPECT_EQ(outcome.exit_code, 0) << outcome.out;
  EXPECT_EQ(count_of(outcome.out, "is not written"), 6) << outcome.out;
  expect_same_result("disk/run", "whole");
}

}  // namespace
}  // namespace jackscrew
