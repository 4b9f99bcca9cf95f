#include <gtest/gtest.h>

#include <limits>

#include "kernels/rows/loss.rows.h"
#include "tests/kernels/kernel_data.h"
#include "tests/support/test_ops.h"

namespace jackscrew {
namespace {

struct LossRun {
  LossRun(int64_t row_count, int64_t vocabulary, float spread)
      : rows(row_count),
        vocab(vocabulary),
        logits(random_floats(rows * vocab, 1)),
        losses(at(rows)) {
    for (float& x : logits) x = x * spread + 3.0f;
    for (int64_t row = 0; row < rows; ++row) {
      targets.push_back(static_cast<int32_t>(row * 31 % vocab));
    }
    scalars.inverse_targets = 1.0f / static_cast<float>(rows);
  }

  void run(Ops& ops, const StepScalars* step) {
    ops.launch(SoftmaxCrossEntropyF32{logits.data(), targets.data(), losses.data(), logits.data(),
                                      step, vocab},
               rows);
  }

  int64_t rows, vocab;
  std::vector<float> logits, losses;
  std::vector<int32_t> targets;
  StepScalars scalars{};
};

TEST(SoftmaxCrossEntropy, MatchesTheReferenceAndItsDifferences) {
  const auto ops = make_test_ops();
  for (const int64_t vocab : {2, 61, 513}) {
    for (const int64_t rows : {1, 3}) {
      LossRun run(rows, vocab, 5.0f);
      const Doubles logits = widen(run.logits);
      run.run(*ops, &run.scalars);
      EXPECT_LE(relative_error(run.losses, reference::cross_entropy(logits, run.targets)), 1e-6);
      const Doubles want = reference::gradient(logits, [&](const Doubles& moved) {
        double sum = 0.0;
        for (const double loss : reference::cross_entropy(moved, run.targets)) sum += loss;
        return sum * static_cast<double>(run.scalars.inverse_targets);
      });
      EXPECT_LE(relative_error(run.logits, want), 1e-6) << vocab;
    }
  }
}

TEST(SoftmaxCrossEntropy, LargeVocabularyAndEvaluation) {
  const auto ops = make_test_ops();
  LossRun run(7, 49152, 5.0f);
  const std::vector<float> before = run.logits;
  run.run(*ops, nullptr);
  EXPECT_EQ(run.logits, before);
  EXPECT_LE(relative_error(run.losses, reference::cross_entropy(widen(before), run.targets)), 1e-6);
  const std::vector<float> losses = run.losses;
  run.run(*ops, &run.scalars);
  EXPECT_EQ(run.losses, losses);
  for (int64_t row = 0; row < run.rows; ++row) {
    double sum = 0.0;  // of softmax - onehot
    for (int64_t i = 0; i < run.vocab; ++i) {
      sum += static_cast<double>(run.logits[at(row * run.vocab + i)]);
    }
    EXPECT_NEAR(sum, 0.0, 1e-6);
  }
}

TEST(SoftmaxCrossEntropy, RoundsTheGradientToBf16) {
  const auto ops = make_test_ops();
  LossRun run(3, 513, 5.0f);
  const std::vector<float> logits = run.logits;
  std::vector<bf16> gradient(logits.size());
  ops->launch(SoftmaxCrossEntropyBf16{run.logits.data(), run.targets.data(), run.losses.data(),
                                      gradient.data(), &run.scalars, run.vocab},
              run.rows);
  EXPECT_EQ(run.logits, logits);
  run.run(*ops, &run.scalars);
  for (size_t i = 0; i < gradient.size(); ++i) {
    EXPECT_EQ(gradient[i].bits, to_bf16(run.logits[i]).bits) << i;
  }
}

TEST(SoftmaxCrossEntropy, SurvivesLargeLogits) {
  const auto ops = make_test_ops();
  LossRun run(3, 61, 1e4f);
  const Doubles want = reference::cross_entropy(widen(run.logits), run.targets);
  run.run(*ops, &run.scalars);
  EXPECT_LE(relative_error(run.losses, want), 1e-6);
  for (const float gradient : run.logits) EXPECT_TRUE(std::isfinite(gradient));
}

TEST(SoftmaxCrossEntropy, NaNReachesTheGradient) {
  const auto ops = make_test_ops();
  LossRun run(1, 61, 1.0f);
  run.logits[40] = std::numeric_limits<float>::quiet_NaN();  // not the target
  run.run(*ops, &run.scalars);
  EXPECT_TRUE(std::isnan(run.losses[0]));
  EXPECT_TRUE(std::isnan(run.logits[0]));
}

TEST(Reductions, SumInto) {
  const auto ops = make_test_ops();
  for (const int64_t count : {1, 61, 4096}) {
    const std::vector<float> x = random_floats(count, 1);
    double total = 2.5;
    ops->launch(SumInto{x.data(), &total, count}, 1);
    double want = 2.5;
    for (const float value : x) want += static_cast<double>(value);
    EXPECT_NEAR(total, want, 1e-12 * static_cast<double>(count));
  }
}

TEST(Reductions, NormAndClipping) {
  for (const int64_t count :
       {int64_t{1}, int64_t{61}, SquaredNormChunks::kChunk, SquaredNormChunks::kChunk * 3 + 17}) {
    const std::vector<float> x = random_floats(count, 1);
    double squares = 0.0;
    for (const float value : x) squares += static_cast<double>(value) * static_cast<double>(value);
    const int64_t chunks = ceil_div(count, SquaredNormChunks::kChunk);
    Doubles first;
    for (const int threads : {1, 2, 3}) {
      const auto ops = make_test_ops(threads);
      Doubles partial(at(chunks));
      StepScalars scalars{};
      scalars.max_grad_norm = static_cast<float>(std::sqrt(squares) / 4.0);
      ops->launch(SquaredNormChunks{x.data(), partial.data(), count}, chunks);
      double sum = 0.0;
      ops->launch(SumOf{partial.data(), &sum, chunks}, 1);
      ops->launch(AddSquares{&sum, &scalars, 1}, 1);
      ops->launch(FinishNorm{&scalars}, 1);
      if (threads == 1) first = partial;
      EXPECT_EQ(partial, first);
      EXPECT_NEAR(scalars.grad_norm / std::sqrt(squares), 1.0, 1e-6);
      EXPECT_NEAR(scalars.clip_scale, 0.25, 1e-5);
      EXPECT_EQ(scalars.finite, 1);
    }
  }
}

// Whoever adds first: a sum that goes on is the sum that did not stop.
TEST(Reductions, AddSquaresGoesOn) {
  const auto ops = make_test_ops();
  Doubles sums(at(61));
  for (size_t i = 0; i < sums.size(); ++i) sums[i] = 1.0 / (1.0 + static_cast<double>(i));
  StepScalars whole{}, parts{};
  ops->launch(AddSquares{sums.data(), &whole, 61}, 1);
  ops->launch(AddSquares{sums.data(), &parts, 20}, 1);
  ops->launch(AddSquares{sums.data() + 20, &parts, 41}, 1);
  EXPECT_EQ(whole.squares, parts.squares);
  EXPECT_NEAR(whole.squares, 4.69626385557, 1e-9);  // the 61st harmonic number
}

TEST(Reductions, FinishNormSeesWhatIsNotFinite) {
  const auto ops = make_test_ops();
  const auto finish = [&](double squares, double loss, float limit) {
    StepScalars scalars{};
    scalars.squares = squares;
    scalars.loss_sum = loss;
    scalars.max_grad_norm = limit;
    ops->launch(FinishNorm{&scalars}, 1);
    return scalars;
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double infinity = std::numeric_limits<double>::infinity();
  EXPECT_EQ(finish(4.0, 1.0, 0.0f).finite, 1);
  EXPECT_EQ(finish(4.0, 1.0, 0.0f).clip_scale, 1.0f);   // 0: no clipping
  EXPECT_EQ(finish(4.0, 1.0, 10.0f).clip_scale, 1.0f);  // below the limit
  EXPECT_EQ(finish(nan, 1.0, 1.0f).finite, 0);
  EXPECT_EQ(finish(infinity, 1.0, 1.0f).finite, 0);
  EXPECT_EQ(finish(4.0, nan, 1.0f).finite, 0);
  EXPECT_EQ(finish(4.0, infinity, 1.0f).finite, 0);
}

TEST(Reductions, AddScaled) {
  const auto ops = make_test_ops();
  for (const int64_t count : {int64_t{1}, int64_t{61}, AddScaled::kChunk * 2 + 5}) {
    const std::vector<float> x = random_floats(count, 1);
    std::vector<float> y = random_floats(count, 2);
    Doubles want = widen(y);
    for (size_t i = 0; i < want.size(); ++i) want[i] += -0.75 * static_cast<double>(x[i]);
    ops->launch(AddScaled{x.data(), y.data(), -0.75f, count}, ceil_div(count, AddScaled::kChunk));
    EXPECT_LE(relative_error(y, want), 1e-6);
  }
}

}  // namespace
}  // namespace jackscrew
