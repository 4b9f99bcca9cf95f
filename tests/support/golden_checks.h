// The engine against the golden files, on any device: logits, loss, every gradient, and ten steps
// of training.
#pragma once

#include "formats/tensor_io.h"
#include "tests/support/golden.h"

namespace jackscrew {

inline constexpr const char* kGoldenModels[] = {
    "gqa_tied", "mha_untied", "gqa_untied_rope_linear", "gqa_tied_rope_llama3",
    "odd",      "mistral",    "rope_dynamic",           "qwen2_yarn",
    "qwen3",    "smollm3"};

// The largest difference, relative to the largest of the values compared.
struct GoldenTolerances {
  double logits = 1e-5;
  double gradients = 1e-4;
  double loss = 1e-5;
  double losses = 1e-4;  // of ten steps
  double norms = 1e-3;
  double parameters = 2e-3;  // after them
};

class GoldenCheck {
 public:
  // `settings` besides the method, "name=value".
  GoldenCheck(const std::string& model, std::vector<std::string> settings,
              const GoldenTolerances& tolerances)
      : golden_(model),
        batch_(golden_.batch()),
        files_(open_model(golden_path(model).string())),
        settings_(std::move(settings)),
        tolerances_(tolerances) {}

  void logits_of_every_sequence() const {
    const auto session = make({});
    const MicroBatch& micro = batch_.micro_batches[0];
    const auto expected = golden_.values("logits");
    const auto vocab = static_cast<size_t>(files_.config.vocab_size);
    for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
      const auto begin = static_cast<size_t>(micro.cu_seqlens[s]);
      const auto end = static_cast<size_t>(micro.cu_seqlens[s + 1]);
      const Tensor logits = session->logits(std::span(micro.ids).subspan(begin, end - begin),
                                            static_cast<int64_t>(end - begin), false);
      const std::vector<float> part(expected.begin() + static_cast<ptrdiff_t>(begin * vocab),
                                    expected.begin() + static_cast<ptrdiff_t>(end * vocab));
      EXPECT_LE(error(*session, logits, part), tolerances_.logits);
    }
  }

  void loss_and_every_gradient() const {
    for (const char* recompute : {"false", "true"}) {
      const auto session = make({std::string("gradient_checkpointing=") + recompute});
      session->accumulate(batch_, 0.0, 0);
      const auto gradients = states(session->stage(), StateRole::gradient);
      EXPECT_EQ(gradients.size(), session->stage().parameters().size());
      for (const auto& [name, view] : gradients) {
        const std::string parameter = name.substr(0, name.rfind(".gradient"));
        EXPECT_LE(error(*session, view, golden_.values("grad." + parameter)), tolerances_.gradients)
            << parameter;
      }
      const StepResult result = session->update({});
      const auto loss = static_cast<double>(golden_.values("loss")[0]);
      EXPECT_NEAR(result.loss, loss, tolerances_.loss * loss);
    }
  }

  void ten_steps_of_adamw() const {
    const auto session = make({"max_grad_norm=1.0"});
    const Schedule schedule{ScheduleKind::cosine, 5e-3, 2, 10};
    const auto losses = golden_.values("losses");
    const auto norms = golden_.values("grad_norms");
    const auto rates = golden_.values("learning_rates");
    for (size_t step = 0; step < losses.size(); ++step) {
      const double rate = schedule.rate(static_cast<int64_t>(step));
      EXPECT_NEAR(rate, static_cast<double>(rates[step]), 1e-9);
      session->accumulate(batch_, rate, static_cast<int64_t>(step));
      const StepResult result = session->update({.matrices = 0.01, .vectors = 0.01});
      const auto loss = static_cast<double>(losses[step]), norm = static_cast<double>(norms[step]);
      EXPECT_NEAR(result.loss, loss, tolerances_.losses * loss) << step;
      EXPECT_NEAR(result.grad_norm, norm, tolerances_.norms * norm) << step;
    }
    for (const auto& [name, view] : states(session->stage(), StateRole::parameter)) {
      EXPECT_LE(error(*session, view, golden_.values("final." + name)), tolerances_.parameters)
          << name;
    }
  }

 private:
  std::unique_ptr<Session> make(const std::vector<std::string>& more) const {
    std::vector<std::string> settings = {"method=full"};
    settings.insert(settings.end(), settings_.begin(), settings_.end());
    settings.insert(settings.end(), more.begin(), more.end());
    return make_session(make_recipe(settings), files_, training_use(batch_.tokens));
  }

  static double error(Session& session, const Tensor& view, const std::vector<float>& expected) {
    std::vector<float> values;
    write_tensor(session.ops(), view, [&](std::span<const uint8_t> bytes) {
      const auto* first = reinterpret_cast<const float*>(bytes.data());
      values.insert(values.end(), first, first + bytes.size() / sizeof(float));
    });
    return relative_error(values.data(), expected);
  }

  Golden golden_;
  StepBatch batch_;
  ModelFiles files_;
  std::vector<std::string> settings_;
  GoldenTolerances tolerances_;
};

}  // namespace jackscrew
