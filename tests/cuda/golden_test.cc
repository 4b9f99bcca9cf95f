// The golden files on a GPU: in f32 as near to PyTorch as the CPU is, and in bf16 as near as its
// rounding lets it be.
#include "tests/support/golden_checks.h"
#include "tests/support/gpu.h"

namespace jackscrew {
namespace {

class GpuGolden : public ::testing::TestWithParam<const char*> {
 protected:
  static void check(const std::string& product, const GoldenTolerances& tolerances) {
    SKIP_WITHOUT_GPU();
    const GoldenCheck golden(GetParam(), {"device=cuda:0", "product=" + product}, tolerances);
    golden.logits_of_every_sequence();
    golden.loss_and_every_gradient();
    golden.ten_steps_of_adamw();
  }
};

TEST_P(GpuGolden, InF32) {
  check("f32", GoldenTolerances());
}

// AdamW moves a weight by its rate whatever the size of a gradient: where that is nearly 0,
// rounding may turn the weight round, and ten steps later it lies where it would not.
TEST_P(GpuGolden, InBf16) {
  check("bf16", {.logits = 4e-2,
                 .gradients = 1e-1,
                 .loss = 5e-3,
                 .losses = 6e-2,
                 .norms = 1e-1,
                 .parameters = 4e-2});
}

INSTANTIATE_TEST_SUITE_P(Models, GpuGolden, ::testing::ValuesIn(kGoldenModels),
                         [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace jackscrew
