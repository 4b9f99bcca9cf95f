// A run on a device whose memory the host cannot see gives the bits of one on the CPU: nothing
// looks at tensors but through Ops.
#include <gtest/gtest.h>

#include "formats/checkpoint.h"
#include "tests/cli/run_program.h"
#include "tests/support/batches.h"
#include "tests/support/golden.h"
#include "tests/support/guarded_device.h"
#include "tests/support/test_ops.h"
#include "train/export.h"
#include "train/generate.h"
#include "train/output_dir.h"

namespace jackscrew {
namespace {

using Settings = std::vector<std::string>;

constexpr int64_t kTokens = 24;
constexpr int64_t kSteps = 6;
constexpr int64_t kSaved = 3;  // steps before the checkpoint

struct Outcome {
  std::vector<double> losses;  // of the steps, and of an evaluation
  std::string answer;          // of the model as it came to be
  std::map<std::string, std::string> files;
};

class GuardedRun {
 public:
  GuardedRun(Settings settings, std::shared_ptr<const Device> device)
      : device_(std::move(device)), directory_("jackscrew_guarded") {
    settings.push_back("output_dir=" + path("out").string());
    recipe_ = make_recipe(settings);
  }

  Outcome run() {
    Outcome out;
    {
      const auto session = make_session(training());
      session->learner().begin_run(kSteps);
      steps(*session, 0, kSaved, out);
      write_checkpoint(path("out"), {kSaved, "", "", ""}, "", states(*session), session->ops());
    }
    const auto session = make_session(training());
    session->learner().begin_run(kSteps);
    restore_checkpoint(
        path("out") / ("checkpoint-" + std::to_string(kSaved)), states(*session),
        [&] { session->schedule_restored(); }, session->ops());
    session->restored();
    steps(*session, kSaved, kSteps, out);
    EXPECT_EQ(session->non_finite_parameter(), "");
    out.losses.push_back(session->evaluate(batch(kSteps)));
    fs::remove_all(path("out") / "checkpoint-3");
    export_result(*session, files_, Tokenizer(byte_tokenizer()), path("out"));
    for (const char* name : {"model.safetensors", "adapter_model.safetensors"}) {
      if (fs::exists(path("out") / name)) out.files[name] = read_text(path("out") / name);
    }
    out.answer = answer();
    return out;
  }

 private:
  fs::path path(const std::string& name) const { return directory_.path() / name; }
  static SessionUse training() { return training_use(kTokens); }

  std::unique_ptr<Session> make_session(const SessionUse& use) const {
    SessionHooks hooks;
    hooks.device = device_;
    return std::make_unique<Session>(recipe_, files_, use, Session::rehearse(recipe_, files_, use),
                                     hooks);
  }

  static StateSource states(Session& session) {
    return [&](const StateVisitor& visitor) { session.visit(visitor); };
  }

  StepBatch batch(int64_t step) const {
    StepBatch out =
        step_of({random_micro_batch(files_.config.vocab_size, {9, 15}, static_cast<uint32_t>(step)),
                 random_micro_batch(files_.config.vocab_size, {kTokens}, 99)});
    out.first_token = step * out.tokens;
    return out;
  }

  void steps(Session& session, int64_t first, int64_t last, Outcome& out) const {
    for (int64_t step = first; step < last; ++step) {
      session.accumulate(batch(step), 1e-3, step);
      const StepResult result = session.update(0.01);
      EXPECT_TRUE(result.finite);
      out.losses.push_back(result.loss);
    }
  }

  std::string answer() const {
    const std::vector<int32_t> prompt = {5, 17, 2, 40};
    const auto session = make_session(generation_use(4, 6));
    const GenerationOptions options{
        .sampling = {}, .max_new_tokens = 6, .end_tokens = {}, .vocab_size = 64};
    std::string out;
    generate(*session, prompt, options, [&](int32_t id) { out += std::to_string(id) + " "; });
    return out;
  }

  std::shared_ptr<const Device> device_;
  TemporaryDirectory directory_;
  ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  Recipe recipe_;
};

class GuardedTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GuardedTest, GivesTheBitsOfTheCpu) {
  Settings settings = {"sequence_len=24", "threads=2"};
  for (const Assignment& setting : split_settings(GetParam(), "")) {
    settings.push_back(setting.name + "=" + setting.text);
  }
  const Outcome guarded = GuardedRun(settings, std::make_shared<GuardedDevice>(test_isa())).run();
  const Outcome plain = GuardedRun(settings, open_device("cpu", 2, test_isa())).run();
  EXPECT_EQ(guarded.losses, plain.losses);
  EXPECT_EQ(guarded.answer, plain.answer);
  EXPECT_EQ(guarded.files.size(), 1u);
  EXPECT_TRUE(guarded.files == plain.files);
}

INSTANTIATE_TEST_SUITE_P(
    Methods, GuardedTest,
    ::testing::Values("method=full", "method=full optimizer=adamw_8bit gradient_checkpointing=true",
                      "method=full storage=bf16", "method=full product=int8 storage=int8_row",
                      "method=lora storage=bf16", "method=lora storage=nf4 product=int8",
                      "method=lora storage=nf4_double lora_dropout=0.1",
                      "method=lora storage=int8_affine", "method=lora storage=int8_dynamic",
                      "method=rotary active_params=50% steps_per_rotation=2",
                      "method=rotary active_params=50% steps_per_rotation=2 storage=int8 "
                      "moments=keep master=ram",
                      "method=rotary active_params=50% steps_per_rotation=2 master=mmap "
                      "master_dtype=bf16"));

TEST(GuardedDevice, FindsWhatItIsThereFor) {
  const GuardedDevice device(test_isa());
  Memory memory("device", device.make_backing(), 0);
  const auto ops = device.make_ops(memory);
  const OwnedTensor x(memory, Purpose::workspace, DType::f32, {1, 4});
  std::vector<float> host(4, 1.0f);
  ops->copy(x.view(), Tensor(host.data(), DType::f32, {1, 4}));
  EXPECT_DEATH(host[0] = x.view().data<float>()[0], "");
  EXPECT_THROW(ops->zero(Tensor(host.data(), DType::f32, {1, 4})), Error);
}

}  // namespace
}  // namespace jackscrew
