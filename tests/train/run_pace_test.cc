#include "train/run_pace.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace jackscrew {
namespace {

TEST(RunPace, EvaluatesAtMultiplesAndAtTheEnd) {
  const RunPace pace(10, 4);
  for (const int64_t step : {4, 8, 10}) EXPECT_TRUE(pace.evaluates_after(step)) << step;
  for (const int64_t step : {1, 5, 9}) EXPECT_FALSE(pace.evaluates_after(step)) << step;
  const RunPace once(10, 0);
  EXPECT_FALSE(once.evaluates_after(5));
  EXPECT_TRUE(once.evaluates_after(10));
}

// Evaluations so long that the time of the steps does not matter.
TEST(RunPace, CountsTheEvaluationsThatAreLeft) {
  constexpr double kHour = 3600.0;
  const auto left = [&](int64_t eval_steps, int64_t done) {
    RunPace pace(10, eval_steps);
    pace.evaluated(kHour);  // before the first step
    pace.begin(0);
    return pace.seconds_left(done) / kHour;
  };
  EXPECT_NEAR(left(4, 1), 3.0, 0.01);
  EXPECT_NEAR(left(4, 4), 3.0, 0.01);  // its own is still to come
  EXPECT_NEAR(left(4, 5), 2.0, 0.01);
  EXPECT_NEAR(left(4, 10), 1.0, 0.01);
  EXPECT_NEAR(left(5, 6), 1.0, 0.01);
  EXPECT_NEAR(left(0, 6), 1.0, 0.01);
}

// The steps take 1 s each.
TEST(RunPace, AHaltMakesNoStepSlower) {
  RunPace pace(2000, 0);
  pace.begin(0);
  EXPECT_EQ(pace.seconds_left(10, 10.0), 1990.0);
  EXPECT_EQ(pace.seconds_left(1000, 1000.0), 1000.0);
  const double halted = 3600.0;
  EXPECT_DOUBLE_EQ(pace.seconds_left(1010, 1010.0 + halted), 990.0 * 1100.0 / 1010.0);
  EXPECT_NEAR(pace.seconds_left(1500, 1500.0 + halted), 500.0, 31.0);
}

// A tenth of the steps take 5 s, the others 1 s.
TEST(RunPace, SlowStepsCount) {
  RunPace pace(2000, 0);
  pace.begin(0);
  double left = 0.0, now = 0.0;
  for (int step = 1; step <= 1000; ++step) {
    now += step % 10 == 0 ? 5.0 : 1.0;
    left = pace.seconds_left(step, now);
  }
  EXPECT_DOUBLE_EQ(left, 1400.0);
}

TEST(RunPace, CheckpointsCountWhateverTheyTake) {
  RunPace pace(20, 0);
  pace.begin(0);
  pace.seconds_left(5, 1e-6);
  pace.save([] { std::this_thread::sleep_for(std::chrono::milliseconds(20)); });
  EXPECT_GE(pace.seconds_left(10, 0.1), 0.02);
}

}  // namespace
}  // namespace jackscrew
