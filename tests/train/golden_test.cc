// The engine against PyTorch: logits, loss, every gradient, and ten steps of training.
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

class GoldenTest : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenTest, LogitsOfEverySequence) {
  const Golden golden(GetParam());
  const StepBatch batch = golden.batch();
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const auto session =
      make_session(make_recipe({"method=full"}), files, training_use(batch.tokens));
  const MicroBatch& micro = batch.micro_batches[0];
  const auto expected = golden.values("logits");
  const auto vocab = static_cast<size_t>(files.config.vocab_size);
  for (size_t s = 0; s + 1 < micro.cu_seqlens.size(); ++s) {
    const auto begin = static_cast<size_t>(micro.cu_seqlens[s]);
    const auto end = static_cast<size_t>(micro.cu_seqlens[s + 1]);
    const Tensor logits = session->logits(std::span(micro.ids).subspan(begin, end - begin),
                                          static_cast<int64_t>(end - begin), false);
    const std::vector<float> part(expected.begin() + static_cast<ptrdiff_t>(begin * vocab),
                                  expected.begin() + static_cast<ptrdiff_t>(end * vocab));
    EXPECT_LE(relative_error(logits.data<float>(), part), 1e-5);
  }
}

TEST_P(GoldenTest, LossAndEveryGradient) {
  const Golden golden(GetParam());
  const StepBatch batch = golden.batch();
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  for (const char* recompute : {"false", "true"}) {
    const Recipe recipe =
        make_recipe({"method=full", std::string("gradient_checkpointing=") + recompute});
    const auto session = make_session(recipe, files, training_use(batch.tokens));
    session->accumulate(batch, 0.0, 0);
    const auto gradients = states(session->stage(), StateRole::gradient);
    EXPECT_EQ(gradients.size(), session->stage().parameters().size());
    for (const auto& [name, view] : gradients) {
      const std::string parameter = name.substr(0, name.rfind(".gradient"));
      EXPECT_LE(relative_error(view.data<float>(), golden.values("grad." + parameter)), 1e-4)
          << parameter;
    }
    const StepResult result = session->update(0.0);
    EXPECT_NEAR(result.loss, static_cast<double>(golden.values("loss")[0]), 1e-5 * result.loss);
  }
}

TEST_P(GoldenTest, TenStepsOfAdamW) {
  const Golden golden(GetParam());
  const StepBatch batch = golden.batch();
  const ModelFiles files = open_model(golden_path(GetParam()).string());
  const Recipe recipe = make_recipe({"method=full", "max_grad_norm=1.0"});
  const auto session = make_session(recipe, files, training_use(batch.tokens));
  const Schedule schedule{ScheduleKind::cosine, 5e-3, 2, 10};
  const auto losses = golden.values("losses");
  const auto norms = golden.values("grad_norms");
  const auto rates = golden.values("learning_rates");
  for (size_t step = 0; step < losses.size(); ++step) {
    const double rate = schedule.rate(static_cast<int64_t>(step));
    EXPECT_NEAR(rate, static_cast<double>(rates[step]), 1e-9);
    session->accumulate(batch, rate, static_cast<int64_t>(step));
    const StepResult result = session->update(0.01);
    EXPECT_NEAR(result.loss, static_cast<double>(losses[step]), 1e-4 * result.loss) << step;
    EXPECT_NEAR(result.grad_norm, static_cast<double>(norms[step]), 1e-3 * result.grad_norm)
        << step;
  }
  for (const auto& [name, view] : states(session->stage(), StateRole::parameter)) {
    EXPECT_LE(relative_error(view.data<float>(), golden.values("final." + name)), 2e-3) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest,
                         ::testing::Values("gqa_tied", "mha_untied", "gqa_untied_rope_linear",
                                           "gqa_tied_rope_llama3", "odd", "rope_dynamic", "mistral",
                                           "qwen2_yarn", "qwen3"),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace jackscrew
