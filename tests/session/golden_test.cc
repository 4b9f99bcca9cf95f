// The engine against PyTorch: logits, loss, every gradient, and ten steps of training.
#include "tests/support/golden_checks.h"

namespace jackscrew {
namespace {

class GoldenTest : public ::testing::TestWithParam<const char*> {
 protected:
  GoldenCheck check_{GetParam(), {}, GoldenTolerances()};
};

TEST_P(GoldenTest, LogitsOfEverySequence) {
  check_.logits_of_every_sequence();
}

TEST_P(GoldenTest, LossAndEveryGradient) {
  check_.loss_and_every_gradient();
}

TEST_P(GoldenTest, TenStepsOfAdamW) {
  check_.ten_steps_of_adamw();
}

INSTANTIATE_TEST_SUITE_P(Models, GoldenTest, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace jackscrew
