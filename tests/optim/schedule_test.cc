// Schedules against the closed forms of transformers' get_*_schedule_with_warmup.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "base/error.h"

namespace jackscrew {
namespace {

constexpr ScheduleKind kKinds[] = {ScheduleKind::constant, ScheduleKind::linear,
                                   ScheduleKind::cosine};

// What transformers multiplies the rate with.
double factor(ScheduleKind kind, double step, double warmup, double total) {
  if (step < warmup) return step / std::max(1.0, warmup);
  const double progress = (step - warmup) / std::max(1.0, total - warmup);
  switch (kind) {
    case ScheduleKind::constant:
      return 1.0;
    case ScheduleKind::linear:
      return std::max(0.0, (total - step) / std::max(1.0, total - warmup));
    case ScheduleKind::cosine:
      return std::max(0.0, 0.5 * (1.0 + std::cos(std::numbers::pi * 0.5 * 2.0 * progress)));
  }
  return 0.0;
}

TEST(ScheduleTest, FollowsTransformersAtEveryStep) {
  for (const ScheduleKind kind : kKinds) {
    for (const int64_t warmup : {0, 1, 7, 99}) {
      const Schedule schedule{kind, 3e-4, warmup, 100};
      for (int64_t step = 0; step <= 100; ++step) {
        EXPECT_NEAR(
            schedule.rate(step),
            3e-4 * factor(kind, static_cast<double>(step), static_cast<double>(warmup), 100), 1e-17)
            << static_cast<int>(kind) << " warm-up " << warmup << " step " << step;
      }
    }
  }
}

TEST(ScheduleTest, BeginsAndEndsWhereItShould) {
  for (const ScheduleKind kind : kKinds) {
    // Without warm-up the first step is already at the peak; with it, the first does nothing.
    EXPECT_EQ((Schedule{kind, 0.5, 0, 10}.rate(0)), 0.5);
    EXPECT_EQ((Schedule{kind, 0.5, 4, 10}.rate(0)), 0.0);
    EXPECT_EQ((Schedule{kind, 0.5, 4, 10}.rate(4)), 0.5);
    // A run of one step trains.
    EXPECT_EQ((Schedule{kind, 0.5, warmup_from_ratio(0.03, 1), 1}.rate(0)), 0.5);
  }
  // The last step of a run still moves; what would follow, and anything past it, does not.
  for (const ScheduleKind kind : {ScheduleKind::linear, ScheduleKind::cosine}) {
    const Schedule schedule{kind, 0.5, 2, 10};
    EXPECT_GT(schedule.rate(9), 0.0);
    EXPECT_NEAR(schedule.rate(10), 0.0, 1e-17);
    EXPECT_NEAR(schedule.rate(25), 0.0, 1e-17);
  }
  EXPECT_DOUBLE_EQ((Schedule{ScheduleKind::linear, 0.5, 2, 10}.rate(9)), 0.5 / 8);
}

TEST(ScheduleTest, WarmUpAsLongAsTheRun) {
  for (const ScheduleKind kind : kKinds) {
    const Schedule schedule{kind, 1.0, 10, 10};
    EXPECT_DOUBLE_EQ(schedule.rate(9), 0.9);
    EXPECT_EQ(schedule.rate(10), 1.0);
  }
}

TEST(ScheduleTest, Names) {
  EXPECT_EQ(kSchedules["constant"], ScheduleKind::constant);
  EXPECT_EQ(kSchedules["linear"], ScheduleKind::linear);
  EXPECT_EQ(kSchedules["cosine"], ScheduleKind::cosine);
}

TEST(ScheduleTest, WarmupIsAShareOfTheStepsButNotAllOfThem) {
  EXPECT_EQ(warmup_from_ratio(0.0, 10), 0);
  EXPECT_EQ(warmup_from_ratio(0.03, 2), 1);
  EXPECT_EQ(warmup_from_ratio(0.03, 100), 3);
  EXPECT_EQ(warmup_from_ratio(0.03, 101), 4);
  EXPECT_EQ(warmup_from_ratio(1.0, 100), 99);
  EXPECT_EQ(warmup_from_ratio(0.5, 1), 0);
  EXPECT_EQ(warmup_from_ratio(0.03, 0), 0);
}

}  // namespace
}  // namespace jackscrew
