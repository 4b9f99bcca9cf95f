// Training with the int8 product beside f32: the same seeds, nearly the same curve.
#include <gtest/gtest.h>

#include <random>

#include "tests/support/batches.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

// Text of a language in which three tokens of four follow from the one before: there is something
// to learn, and a loss that cannot be undercut.
MicroBatch sample(int64_t vocab_size, int64_t sequences, int64_t length, std::mt19937& random) {
  const auto below = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  };
  MicroBatch out;
  out.cu_seqlens = {0};
  for (int64_t s = 0; s < sequences; ++s) {
    int64_t id = below(vocab_size);
    for (int64_t t = 0; t < length; ++t) {
      out.ids.push_back(static_cast<int32_t>(id));
      out.positions.push_back(static_cast<int32_t>(t));
      id = below(4) != 0 ? (5 * id + 3) % vocab_size : below(vocab_size);
      out.targets.push_back(t + 1 < length ? static_cast<int32_t>(id) : -1);
      out.target_count += t + 1 < length ? 1 : 0;
    }
    out.cu_seqlens.push_back(static_cast<int32_t>(out.ids.size()));
  }
  return out;
}

TEST(SlowInt8Training, LossFollowsThatOfF32) {
  constexpr int kSteps = 300;
  constexpr int kWindow = 25;
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  std::array<std::vector<double>, 2> losses;
  for (size_t i = 0; i < losses.size(); ++i) {
    const Recipe recipe =
        make_recipe({"method=full", "init=random", i == 0 ? "product=f32" : "product=int8"});
    const auto session = make_session(recipe, files, training_use(8 * 32));
    std::mt19937 random(1);
    for (int step = 0; step < kSteps; ++step) {
      session->accumulate(step_of({sample(files.config.vocab_size, 8, 32, random)}), 3e-3, step);
      losses[i].push_back(session->update({}).loss);
    }
  }
  const auto mean = [&](size_t i, int begin) {
    double sum = 0.0;
    for (int step = begin; step < begin + kWindow; ++step) {
      sum += losses[i][static_cast<size_t>(step)];
    }
    return sum / kWindow;
  };
  for (int begin = 0; begin < kSteps; begin += kWindow) {
    EXPECT_NEAR(mean(1, begin), mean(0, begin), 0.01 * mean(0, begin)) << "from step " << begin;
  }
  EXPECT_LT(mean(0, kSteps - kWindow), 0.8 * mean(0, 0)) << "nothing was learnt";
}

}  // namespace
}  // namespace jackscrew
