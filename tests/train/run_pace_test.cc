#include "train/run_pace.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace jackscrew
