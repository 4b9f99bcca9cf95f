// Benchmarks' Ops on a GPU: what they measure is whole, and they change nothing of it.
#include "bench/timed_ops.h"

#include <gtest/gtest.h>

#include <numeric>

#include "cli/arguments.h"
#include "session/session.h"
#include "tests/support/batches.h"
#include "tests/support/golden.h"

namespace jackscrew {
namespace {

TEST(CudaTimedOps, DivideAStepIntoItsParts) {
  constexpr int64_t kSteps = 5, kMeasured = 3;
  const ModelFiles files = open_model(golden_path("gqa_tied").string());
  const Recipe recipe =
      make_recipe(settings_of("device=cuda:0 product=bf16 sequence_len=24 method=full"));
  const SessionUse use = training_use(24);
  const SessionPlan plan = Session::rehearse(recipe, files, use);
  const StepBatch batch = step_of({random_micro_batch(files.config.vocab_size, {24}, 1)});
  PartCosts costs{};
  double total = 0.0;
  const auto losses = [&](bool wrapped) {
    TimedOps* timed = nullptr;
    SessionHooks hooks;
    if (wrapped) {
      hooks.wrap = [&](std::unique_ptr<Ops> ops) {
        auto out = std::make_unique<TimedOps>(std::move(ops), files.config.vocab_size, BenchClock{},
                                              costs);
        timed = out.get();
        return out;
      };
    }
    Session session(recipe, files, use, plan, hooks);
    std::vector<double> out;
    for (int64_t step = 0; step < kSteps; ++step) {
      const bool measured = wrapped && step == kMeasured;
      if (measured) timed->measure(true);
      session.accumulate(batch, 1e-3, step);
      session.apply({});
      if (measured) {
        total = timed->collect();
        EXPECT_GT(timed->kernel_seconds().at("SwigluForwardBf16"), 0.0);
        timed->measure(false);
      }
      out.push_back(session.result().loss);
    }
    // The first runs, the second is recorded; the measured one is neither.
    const int64_t replayed = 2 * (kSteps - 1 - (wrapped ? 1 : 0));
    EXPECT_EQ(session.ops().repeat_counts().replayed, replayed);
    EXPECT_EQ(session.ops().repeat_counts().refused, 0);
    return out;
  };
  EXPECT_EQ(losses(true), losses(false));
  const double sum = std::accumulate(costs.begin(), costs.end(), 0.0,
                                     [](double a, const auto& b) { return a + b.seconds; });
  EXPECT_GT(total, 0.0);
  EXPECT_NEAR(sum, total, 1e-9);
  for (const Part part : {Part::forward, Part::input_gradient, Part::weight_gradient,
                          Part::head_forward, Part::attention_forward, Part::attention_backward}) {
    EXPECT_GT(costs[static_cast<size_t>(part)].seconds, 0.0)
        << part_name(static_cast<size_t>(part));
    EXPECT_GT(costs[static_cast<size_t>(part)].operations, 0.0);
  }
  for (const Part part :
       {Part::norms, Part::swiglu, Part::rope, Part::optimizer, Part::embedding}) {
    EXPECT_GT(costs[static_cast<size_t>(part)].seconds, 0.0)
        << part_name(static_cast<size_t>(part));
  }
}

}  // namespace
}  // namespace jackscrew
