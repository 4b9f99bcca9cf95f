// A run through all that a session does, on any device: training, a checkpoint, going on from it in
// another session, evaluation, export and generation.
#pragma once

#include <gtest/gtest.h>

#include <cstring>

#include "formats/checkpoint.h"
#include "formats/safetensors.h"
#include "generation/generate.h"
#include "tests/cli/run_program.h"
#include "tests/support/batches.h"
#include "tests/support/golden.h"
#include "train/result.h"

namespace jackscrew {

struct DeviceOutcome {
  std::vector<double> losses;  // of the steps, and of an evaluation
  std::string answer;          // of the model as it came to be
  std::map<std::string, std::string> files;
  std::map<std::string, std::vector<float>> weights;  // of a model that was written, by name
};

class DeviceRun {
 public:
  static constexpr int64_t kTokens = 24;
  static constexpr int64_t kSaved = 3;  // steps before the checkpoint

  // `text` has the settings of the recipe, "name=value name=value", on top of device=cpu. `device`
  // takes the place of the recipe's, whose plans it must keep to.
  explicit DeviceRun(const std::string& text, int64_t steps = 6,
                     std::shared_ptr<const Device> device = nullptr)
      : device_(std::move(device)), steps_(steps), directory_("jackscrew_device_run") {
    auto settings = settings_of("device=cpu sequence_len=24 threads=2 " + text);
    settings.push_back("output_dir=" + path("out").string());
    recipe_ = make_recipe(settings);
  }

  DeviceOutcome run() {
    DeviceOutcome out;
    {
      const auto session = make_session(training());
      session->learner().begin_run(steps_);
      steps(*session, 0, kSaved, out);
      write_checkpoint(path("out"), {kSaved, "", "", ""}, "", states(*session), session->ops());
    }
    const auto session = make_session(training());
    session->learner().begin_run(steps_);
    restore_checkpoint(
        path("out") / ("checkpoint-" + std::to_string(kSaved)), states(*session),
        [&] { session->learner_restored(); }, session->ops());
    session->restored();
    steps(*session, kSaved, steps_, out);
    EXPECT_EQ(session->non_finite_parameter(), "");
    const StepBatch held_out = batch(steps_);
    out.losses.push_back(session->loss_sum(held_out) / static_cast<double>(held_out.targets));
    fs::remove_all(path("out") / "checkpoint-3");
    SessionResult result(*session);
    write_result(result, files_, Tokenizer(byte_tokenizer()), {}, path("out"), false);
    for (const char* name : {"model.safetensors", "adapter_model.safetensors"}) {
      if (fs::exists(path("out") / name)) out.files[name] = read_text(path("out") / name);
    }
    if (out.files.contains("model.safetensors")) {
      const SafetensorsFile model(path("out") / "model.safetensors");
      for (const SafetensorsEntry& entry : model.entries()) {
        std::vector<float>& values = out.weights[entry.name];
        values.resize(entry.bytes.size() / sizeof(float));
        std::memcpy(values.data(), entry.bytes.data(), entry.bytes.size());
      }
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

  void steps(Session& session, int64_t first, int64_t last, DeviceOutcome& out) const {
    for (int64_t step = first; step < last; ++step) {
      session.accumulate(batch(step), 1e-3, step);
      const StepResult result = session.update({.matrices = 0.01, .vectors = 0.01});
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
  int64_t steps_;
  TemporaryDirectory directory_;
  ModelFiles files_ = open_model(golden_path("gqa_tied").string());
  Recipe recipe_;
};

}  // namespace jackscrew
