// Whole runs on the GPU beside the same on the CPU. What is left between them is the order of sums
// in f32: it moves losses by less than 1e-4 in 50 steps. Nothing is rounded to codes while it
// learns: a number at the edge between two codes may fall to either side.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/process_memory.h"
#include "cli/commands.h"
#include "session/fit.h"
#include "tests/support/device_run.h"
#include "tests/support/errors.h"
#include "tests/support/gpu.h"
#include "tests/support/tiny_run.h"
#include "tests/support/train_quietly.h"
#include "tests/support/worse.h"

namespace jackscrew {
namespace {

void expect_near(const std::vector<double>& got, const std::vector<double>& wanted) {
  constexpr double kLossTolerance = 1e-4;
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], kLossTolerance) << i;
}

class GpuRun : public ::testing::TestWithParam<const char*> {};

TEST_P(GpuRun, AgreesWithTheCpu) {
  SKIP_WITHOUT_GPU();
  const std::string settings = GetParam();
  const DeviceOutcome gpu = DeviceRun(settings + " device=cuda:0").run();
  const DeviceOutcome cpu = DeviceRun(settings).run();
  expect_near(gpu.losses, cpu.losses);
  EXPECT_EQ(gpu.answer, cpu.answer);
  ASSERT_EQ(gpu.files.size(), 1u);
  EXPECT_EQ(gpu.files.begin()->second.size(), cpu.files.begin()->second.size());
}

INSTANTIATE_TEST_SUITE_P(
    Methods, GpuRun,
    ::testing::Values("method=full", "method=lora storage=nf4",
                      "method=lora storage=nf4 use_dora=true", "method=prompt prompt_tokens=3",
                      "method=rotary active_params=50% steps_per_rotation=2 storage=f32",
                      "method=galore projection_update_gap=3"));

TEST(GpuRun, LossesOfFiftyStepsAreTheCpus) {
  SKIP_WITHOUT_GPU();
  expect_near(DeviceRun("method=full device=cuda:0", 50).run().losses,
              DeviceRun("method=full", 50).run().losses);
}

// What losses do not show. A weight whose gradient is about zero may take a step the other way; a
// hundredth of a learning rate was found on the emulation.
TEST(GpuRun, NoWeightStraysFromTheCpus) {
  SKIP_WITHOUT_GPU();
  for (const char* optimizer : {"optimizer=adamw", "optimizer=adamw_8bit"}) {
    const std::string settings = fmt::format("method=full {}", optimizer);
    const DeviceOutcome gpu = DeviceRun(settings + " device=cuda:0", 20).run();
    const DeviceOutcome cpu = DeviceRun(settings, 20).run();
    double largest = 0;
    ASSERT_EQ(gpu.weights.size(), cpu.weights.size());
    for (const auto& [name, wanted] : cpu.weights) {
      const std::vector<float>& got = gpu.weights.at(name);
      ASSERT_EQ(got.size(), wanted.size()) << name;
      for (size_t i = 0; i < got.size(); ++i) {
        largest = worse(largest, std::abs(static_cast<double>(got[i] - wanted[i])));
      }
    }
    constexpr double kLearningRate = 1e-3;
    std::printf("%s: largest difference %.3g learning rates\n", optimizer, largest / kLearningRate);
    EXPECT_LE(largest, kLearningRate) << optimizer;
  }
}

TEST(GpuRun, RepeatsBitForBit) {
  SKIP_WITHOUT_GPU();
  const DeviceOutcome once = DeviceRun("method=full device=cuda:0").run();
  const DeviceOutcome again = DeviceRun("method=full device=cuda:0").run();
  EXPECT_EQ(once.losses, again.losses);
  EXPECT_TRUE(once.files == again.files);
}

// Weights that come and go beside the steps are there when they are needed, as they were left; also
// where a checkpoint was taken while some were on their way.
TEST(GpuRun, OverlappedRotationChangesNoBit) {
  SKIP_WITHOUT_GPU();
  for (const char* settings : {"steps_per_rotation=2", "steps_per_rotation=3 churn=1 moments=reset",
                               "steps_per_rotation=2 master=mmap static=rotate optimizer=adamw"}) {
    const std::string all =
        fmt::format("method=rotary active_params=50% device=cuda:0 {}", settings);
    const DeviceOutcome plain = DeviceRun(all).run();
    const DeviceOutcome beside = DeviceRun(all + " overlap_rotation=true").run();
    EXPECT_EQ(beside.losses, plain.losses) << settings;
    EXPECT_EQ(beside.answer, plain.answer) << settings;
    EXPECT_TRUE(beside.files == plain.files) << settings;
  }
}

TEST(GpuRun, TakesTheMemoryThatWasPlanned) {
  SKIP_WITHOUT_GPU();
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  for (const char* method :
       {"method=full", "method=lora", "method=rotary active_params=50%",
        "method=rotary active_params=50% steps_per_rotation=2 overlap_rotation=true",
        "method=rotary active_params=50% steps_per_rotation=1 churn=1 overlap_rotation=true",
        "method=qgalore projection_update_gap=2"}) {
    const Recipe recipe =
        make_recipe(settings_of(std::string("device=cuda:0 sequence_len=24 ") + method));
    const SessionUse use = training_use(24);
    const SessionPlan plan = Session::rehearse(recipe, files, use);
    Session session(recipe, files, use, plan);
    const StepBatch batch = step_of({random_micro_batch(files.config.vocab_size, {24}, 1)});
    for (int64_t step = 0; step < 7; ++step) {
      session.accumulate(batch, 1e-3, step);
      EXPECT_TRUE(session.update({}).finite);
    }
    EXPECT_EQ(session.memory().ledger().peak, plan.ledger.peak) << method;
  }
}

// The trainer itself: data, checkpoints, evaluation, the log, the result.
TEST(GpuRun, TrainsByARecipe) {
  SKIP_WITHOUT_GPU();
  const TinyRun tiny("cuda_run");
  const auto losses_on = [&](const std::string& device, const std::string& output) {
    train_quietly(tiny.settings("method=lora max_steps=4 save_steps=2 val_size=0.1 device=" +
                                device + " output_dir=" + tiny.path(output).string()));
    std::vector<double> losses;
    for (const auto& [step, loss] : tiny.losses(output)) losses.push_back(loss);
    for (const auto& event : tiny.events(output, "eval")) losses.push_back(event["eval_loss"]);
    return losses;
  };
  const std::vector<double> on_gpu = losses_on("cuda:0", "gpu");
  EXPECT_EQ(on_gpu.size(), 4u + 2u);
  expect_near(on_gpu, losses_on("cpu", "cpu"));
  const std::string level = tiny.events("gpu", "start").front()["isa"];
  EXPECT_TRUE(level.starts_with("sm_")) << level;
  EXPECT_TRUE(fs::exists(tiny.path("gpu") / "adapter_model.safetensors"));
}

// What waits beside the GPU lies in the machine's memory.
TEST(GpuRun, IsHeldAgainstTheMachinesMemory) {
  SKIP_WITHOUT_GPU();
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const std::string settings =
      "device=cuda:0 sequence_len=24 method=rotary active_params=50% storage=int8";
  const Recipe recipe = make_recipe(settings_of(settings));
  const SessionUse use = training_use(24);
  SessionPlan plan = Session::rehearse(recipe, files, use);
  require_fit(recipe, files, use, plan);
  // CUDA's own on the host was up to 358 MiB beside an H100.
  EXPECT_GE(machine_memory(recipe, use, plan).needed, plan.host.peak + (int64_t{358} << 20));
  plan.host.peak = int64_t{1} << 49;
  plan.host.at_peak[static_cast<size_t>(Purpose::masters)] = plan.host.peak;
  expect_message(ErrorKind::does_not_fit, "this run needs 524288.00 GiB on the host (masters",
                 [&] { require_fit(recipe, files, use, plan); });
  // A budget is the user's word, but a process that exceeds a memory limit is killed.
  const Recipe budgeted = make_recipe(settings_of(settings + " host_memory=600TiB"));
  if (!memory_limit()) require_fit(budgeted, files, use, plan);
}

TEST(GpuRun, IsPlannedAgainstTheGpusMemory) {
  SKIP_WITHOUT_GPU();
  const TinyRun tiny("cuda_plan");
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(run_plan(settings_of(tiny.settings("device=cuda:0"))), 0);
  const std::string said = ::testing::internal::GetCapturedStdout();
  EXPECT_NE(said.find("device (cuda:0)"), std::string::npos) << said;
  EXPECT_NE(said.find("is free on cuda:0 now"), std::string::npos) << said;
}

}  // namespace
}  // namespace jackscrew
